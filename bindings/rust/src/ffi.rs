//! What this crate uses of spark_comm.h, as that header has it.
use std::ffi::{c_char, c_int, c_void};

#[repr(C)]
pub struct Comm {
    _opaque: [u8; 0],
}

pub type LogFn = Option<unsafe extern "C" fn(*mut c_void, c_int, *const c_char)>;

#[repr(C)]
pub struct Options {
    pub struct_size: usize,
    pub backend: *const c_char,
    pub master_addr: *const c_char,
    pub job_token: *const c_char,
    pub log: LogFn,
    pub log_user: *mut c_void,
    pub stream: u64,
    pub memory: i32,
    pub rank: i32,
    pub world_size: i32,
    pub master_port: i32,
    pub device: i32,
    pub dtype: i32,
    pub rendezvous_timeout_ms: i32,
    pub op_timeout_ms: i32,
    pub liveness_timeout_ms: i32,
    pub close_timeout_ms: i32,
}

#[repr(C)]
pub struct Error {
    pub struct_size: usize,
    pub status: i32,
    pub operation: i32,
    pub sequence: u64,
    pub peer: i32,
    pub epoch: u32,
    pub native_code: i64,
    pub message: [c_char; 512],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaneReport {
    pub submitted: u64,
    pub completed: u64,
    pub submitted_age_ms: i64,
    pub completed_age_ms: i64,
}

#[repr(C)]
pub struct HealthReport {
    pub struct_size: usize,
    pub state: i32,
    pub activity: i32,
    pub epoch: u32,
    pub lost_count: i32,
    pub lost_rank: i32,
    pub silent_rank: i32,
    pub silent_ms: i64,
    pub device_progress: u64,
    pub lanes: [LaneReport; 2],
}

extern "C" {
    pub fn spark_comm_options_init(options: *mut Options, struct_size: usize);
    pub fn spark_comm_open(options: *const Options, comm: *mut *mut Comm) -> c_int;
    pub fn spark_comm_close(comm: *mut Comm);
    pub fn spark_comm_abort(comm: *mut Comm) -> c_int;
    pub fn spark_comm_all_reduce(comm: *mut Comm, ptr: u64, bytes: usize) -> c_int;
    pub fn spark_comm_all_reduce_async(comm: *mut Comm, ptr: u64, bytes: usize, compute_stream: u64) -> c_int;
    pub fn spark_comm_all_gather(comm: *mut Comm, send_ptr: u64, recv_ptr: u64, bytes: usize) -> c_int;
    pub fn spark_comm_reduce_scatter(comm: *mut Comm, send_ptr: u64, recv_ptr: u64, bytes: usize) -> c_int;
    pub fn spark_comm_broadcast(comm: *mut Comm, ptr: u64, bytes: usize, root: c_int) -> c_int;
    pub fn spark_comm_recv_command_u32(comm: *mut Comm, ptr: u64, root: c_int) -> c_int;
    pub fn spark_comm_barrier(comm: *mut Comm) -> c_int;
    pub fn spark_comm_register_buffer(comm: *mut Comm, ptr: u64, bytes: usize, handle: *mut u64) -> c_int;
    pub fn spark_comm_deregister_buffer(comm: *mut Comm, handle: u64) -> c_int;
    pub fn spark_comm_symmetric_alloc(comm: *mut Comm, bytes: usize, ptr: *mut u64) -> c_int;
    pub fn spark_comm_symmetric_free(comm: *mut Comm, ptr: u64) -> c_int;
    pub fn spark_comm_set_add_kernel(comm: *mut Comm, handle: u64) -> c_int;
    pub fn spark_comm_send_to(comm: *mut Comm, ptr: u64, bytes: usize, dest_rank: c_int, stream: u64) -> c_int;
    pub fn spark_comm_recv_from(comm: *mut Comm, ptr: u64, bytes: usize, src_rank: c_int, stream: u64) -> c_int;
    pub fn spark_comm_group_start(comm: *mut Comm) -> c_int;
    pub fn spark_comm_group_end(comm: *mut Comm) -> c_int;
    pub fn spark_comm_is_healthy(comm: *const Comm) -> bool;
    pub fn spark_comm_attempt_reconnect(comm: *mut Comm) -> c_int;
    pub fn spark_comm_rank(comm: *const Comm) -> c_int;
    pub fn spark_comm_world_size(comm: *const Comm) -> c_int;
    pub fn spark_comm_send_command(comm: *mut Comm, words: *const u32, count: usize) -> c_int;
    pub fn spark_comm_recv_command(comm: *mut Comm, words: *mut u32, capacity: usize, count: *mut usize) -> c_int;
    pub fn spark_comm_exchange_host(comm: *mut Comm, send: *const c_void, recv: *mut c_void, bytes: usize) -> c_int;
    pub fn spark_comm_health(comm: *const Comm, report: *mut HealthReport) -> c_int;
    pub fn spark_comm_last_error(comm: *const Comm, error: *mut Error) -> c_int;
    pub fn spark_comm_status_name(status: c_int) -> *const c_char;
    pub fn spark_comm_status_text(status: c_int) -> *const c_char;
    pub fn spark_comm_version() -> *const c_char;
}
