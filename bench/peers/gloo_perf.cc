/*
 * gloo as a peer of spark_comm: f32 collectives and send/recv over its TCP transport on loopback,
 * the only one it has for ranks of one host. Reduce-scatter is left out: this version has it only
 * as a class that allocates its buffers per object.
 *
 *   g++ -O3 gloo_perf.cc harness.o -lgloo, then for each rank
 *   RANK=r WORLD_SIZE=2 GLOO_STORE=<empty folder> ./gloo_perf [--op all] [--sizes 8,1K]
 */
#include "harness.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>

namespace {

std::shared_ptr<gloo::rendezvous::Context> context;

void barrier() {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
}

template <typename T>
void reduce(T *data, size_t count, void (*function)(void *, const void *, const void *, size_t)) {
    gloo::AllreduceOptions options(context);
    options.setOutput(data, count);
    options.setReduceFunction(function);
    gloo::allreduce(options);
}

void largest(double *values, int count) {
    reduce(values, static_cast<size_t>(count), gloo::max<double>);
}

void all_reduce(float *data, size_t count) {
    reduce(data, count, gloo::sum<float>);
}

void all_gather(const float *send, float *recv, size_t count) {
    gloo::AllgatherOptions options(context);
    options.setInput(const_cast<float *>(send), count);
    options.setOutput(recv, count * static_cast<size_t>(context->size));
    gloo::allgather(options);
}

void broadcast(float *data, size_t count) {
    gloo::BroadcastOptions options(context);
    options.setOutput(data, count);
    options.setRoot(0);
    gloo::broadcast(options);
}

void send_to(const float *data, size_t count, int peer) {
    auto buffer = context->createUnboundBuffer(const_cast<float *>(data), count * sizeof(float));
    buffer->send(peer, 0);
    buffer->waitSend();
}

void recv_from(float *data, size_t count, int peer) {
    auto buffer = context->createUnboundBuffer(data, count * sizeof(float));
    buffer->recv(peer, 0);
    buffer->waitRecv();
}

int number(const char *name) {
    const char *text = std::getenv(name);
    return text ? std::atoi(text) : -1;
}

int run(int argc, char **argv) {
    const char *folder = std::getenv("GLOO_STORE");
    int rank = number("RANK"), size = number("WORLD_SIZE");
    if (!folder || rank < 0 || size < 1) {
        std::fprintf(stderr, "gloo_perf: set RANK, WORLD_SIZE and GLOO_STORE\n");
        return 2;
    }
    gloo::transport::tcp::attr attributes;
    attributes.iface = "lo";
    auto device = gloo::transport::tcp::CreateDevice(attributes);
    gloo::rendezvous::FileStore store(folder);
    context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->connectFullMesh(store, device);

    struct harness_peer peer = {};
    peer.name = "gloo";
    peer.version = GLOO_PACKAGE_VERSION;
    peer.rank = rank;
    peer.size = size;
    peer.barrier = barrier;
    peer.largest = largest;
    peer.all_reduce = all_reduce;
    peer.all_gather = all_gather;
    peer.broadcast = broadcast;
    peer.send = send_to;
    peer.recv = recv_from;
    int code = harness_main(argc, argv, &peer);
    barrier();
    context.reset();
    return code;
}

} // namespace

int main(int argc, char **argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception &e) {
        std::fprintf(stderr, "gloo_perf: %s\n", e.what());
        return 1;
    }
}
