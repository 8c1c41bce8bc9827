//! Ranks as threads of this process, on the host backends of the installed library.
use spark_comm::{CommBackend, Communicator, Dtype, Options, SingleGpuBackend, Status};
use std::net::TcpListener;
use std::sync::Barrier;
use std::thread;

fn options(rank: i32, world: i32, port: u16) -> Options {
    Options {
        rank: Some(rank),
        world_size: Some(world),
        master_port: Some(port),
        master_addr: Some("127.0.0.1".into()),
        dtype: Some(Dtype::F32),
        rendezvous_timeout_ms: Some(20_000),
        op_timeout_ms: Some(20_000),
        ..Default::default()
    }
}

/// Runs the same function as every rank of a world. Its port was free a moment ago.
fn world(size: i32, rank_main: impl Fn(Communicator) + Sync) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    thread::scope(|scope| {
        for rank in 0..size {
            let rank_main = &rank_main;
            scope.spawn(move || rank_main(Communicator::open(&options(rank, size, port)).unwrap()));
        }
    });
}

fn addr<T>(values: &mut [T]) -> (u64, usize) {
    (values.as_mut_ptr() as u64, std::mem::size_of_val(values))
}

#[test]
fn collectives() {
    world(3, |comm| {
        let (rank, size) = (comm.rank(), comm.world_size());
        assert_eq!(size, 3);
        assert!(comm.is_healthy());
        comm.barrier().unwrap();

        let mut sum = [rank as f32 + 1.0; 5];
        let (ptr, bytes) = addr(&mut sum);
        unsafe { comm.all_reduce(ptr, bytes) }.unwrap();
        assert_eq!(sum, [6.0; 5]);
        unsafe { comm.all_reduce_async(ptr, bytes, 0) }.unwrap();
        assert_eq!(sum, [18.0; 5]);

        let (mut own, mut all) = ([rank as u8; 3], [9u8; 9]);
        unsafe { comm.all_gather(addr(&mut own).0, addr(&mut all).0, 3) }.unwrap();
        assert_eq!(all, [0, 0, 0, 1, 1, 1, 2, 2, 2]);

        let (mut parts, mut part) = ([1.0f32, 2.0, 3.0], [0.0f32]);
        unsafe { comm.reduce_scatter(addr(&mut parts).0, addr(&mut part).0, 4) }.unwrap();
        assert_eq!(part, [3.0 * (rank as f32 + 1.0)]);

        let mut word = [if rank == 0 { 77u32 } else { 0 }];
        let ptr = addr(&mut word).0;
        if rank == 0 {
            unsafe { comm.broadcast(ptr, 4, 0) }.unwrap();
        } else {
            unsafe { comm.recv_command_u32(ptr, 0) }.unwrap();
        }
        assert_eq!(word, [77]);

        let (mut out, mut back) = ([rank as u64; 2], [9u64; 2]);
        comm.group_start().unwrap();
        unsafe {
            comm.send_to(addr(&mut out).0, 16, (rank + 1) % 3, 0).unwrap();
            comm.recv_from(addr(&mut back).0, 16, (rank + 2) % 3, 0).unwrap();
        }
        comm.group_end().unwrap();
        assert_eq!(back, [(rank as u64 + 2) % 3; 2]);

        let ptr = comm.symmetric_alloc(4096).unwrap();
        let handle = unsafe { comm.register_buffer(ptr, 4096) }.unwrap();
        comm.deregister_buffer(handle).unwrap();
        unsafe { comm.symmetric_free(ptr) }.unwrap();

        let mut words = [0u32; 4];
        if rank == 0 {
            comm.send_command(&[5, 6, 7]).unwrap();
        } else {
            assert_eq!(comm.recv_command(&mut words).unwrap(), 3);
            assert_eq!(words, [5, 6, 7, 0]);
        }
        assert_eq!(comm.exchange_host(&[rank as u8, 40]).unwrap(), [0, 40, 1, 40, 2, 40]);

        assert_eq!(unsafe { comm.set_add_kernel(0) }.unwrap_err().status, Status::NotSupported);
        let error = unsafe { comm.all_reduce(addr(&mut sum).0, 3) }.unwrap_err();
        assert_eq!(error.status, Status::InvalidArgument);
        assert!(error.message.contains("bytes"), "{error}");
        comm.barrier().unwrap();
    });
}

#[test]
fn aborted_and_together_again() {
    let aborted = Barrier::new(2);
    world(2, |comm| {
        let mut sum = [1.0f32];
        let (ptr, bytes) = addr(&mut sum);
        comm.barrier().unwrap();
        if comm.rank() == 1 {
            comm.abort().unwrap();
        } else {
            let error = unsafe { comm.all_reduce(ptr, bytes) }.unwrap_err();
            assert_eq!(error.status, Status::Aborted);
            assert!(error.is_fatal());
            assert!(error.message.contains("rank 1"), "{error}");
            assert!(!comm.is_healthy());
            assert!(comm.health().unwrap().poisoned);
        }
        aborted.wait();
        comm.attempt_reconnect().unwrap();
        assert!(comm.is_healthy());
        assert_eq!(comm.health().unwrap().epoch, 2);
        sum[0] = 1.0;
        unsafe { comm.all_reduce(addr(&mut sum).0, bytes) }.unwrap();
        assert_eq!(sum, [2.0]);
    });
}

/// What one rank alone answers, and the library's `single` with the same calls.
fn answers(comm: &dyn CommBackend) -> Vec<Result<u64, Status>> {
    let mut values = [3.0f32; 4];
    let (ptr, bytes) = addr(&mut values);
    let done = |result: spark_comm::Result<()>| result.map(|_| 0).map_err(|error| error.status);
    let got = |result: spark_comm::Result<u64>| result.map_err(|error| error.status);
    let answers = unsafe {
        vec![
            Ok(comm.rank() as u64),
            Ok(comm.world_size() as u64),
            Ok(comm.is_healthy() as u64),
            done(comm.all_reduce(ptr, bytes)),
            done(comm.all_reduce_async(ptr, bytes, 0)),
            done(comm.all_gather(ptr, ptr, bytes)),
            done(comm.reduce_scatter(ptr, ptr, bytes)),
            done(comm.broadcast(ptr, bytes, 0)),
            done(comm.broadcast(ptr, bytes, 1)),
            done(comm.broadcast(ptr, bytes, -1)),
            done(comm.recv_command_u32(ptr, 0)),
            done(comm.barrier()),
            got(comm.register_buffer(ptr, bytes)),
            done(comm.deregister_buffer(0)),
            done(comm.deregister_buffer(7)),
            got(comm.symmetric_alloc(64)),
            done(comm.symmetric_free(ptr)),
            done(comm.symmetric_free(0)),
            done(comm.set_add_kernel(0)),
            done(comm.send_to(ptr, bytes, 0, 0)),
            done(comm.recv_from(ptr, bytes, 0, 0)),
            done(comm.send_to(ptr, bytes, 1, 0)),
            done(comm.group_start()),
            done(comm.group_end()),
            done(comm.attempt_reconnect()),
        ]
    };
    assert_eq!(values, [3.0; 4], "touches no memory");
    answers
}

#[test]
fn one_rank_alone() {
    let options = Options { backend: Some("single".into()), ..options(0, 1, 29500) };
    let library = Communicator::open(&options).unwrap();
    assert_eq!(answers(&SingleGpuBackend), answers(&library));
}

#[test]
fn open_fails_in_words() {
    let error = Communicator::open(&Options { backend: Some("no_such".into()), ..options(0, 1, 29500) }).unwrap_err();
    assert_eq!(error.status, Status::Unavailable);
    assert!(error.message.contains("no_such"), "{error}");
    let error = Communicator::open(&options(3, 2, 29500)).unwrap_err();
    assert_eq!(error.status, Status::InvalidArgument);
    assert!(!error.is_fatal());
    assert_eq!(spark_comm::version().split('.').count(), 3);
}
