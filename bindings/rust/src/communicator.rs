use crate::{ffi, CommBackend, Error, Result, Status};
use std::ffi::{c_char, c_void, CString};
use std::ptr;

/// Element types of reductions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    Bf16 = 1,
    F16 = 2,
    F32 = 3,
    F64 = 4,
    I8 = 5,
    U8 = 6,
    I32 = 7,
    I64 = 8,
}

/// How to open. What is `None` comes from the environment (`SPARK_COMM_...`, then the launcher's), then
/// from the library's defaults; docs/settings.md has all of them. Times are milliseconds, -1: no limit.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub backend: Option<String>,
    pub master_addr: Option<String>,
    pub job_token: Option<String>,
    pub stream: u64,
    pub rank: Option<i32>,
    pub world_size: Option<i32>,
    pub master_port: Option<u16>,
    pub device: Option<i32>,
    pub dtype: Option<Dtype>,
    pub rendezvous_timeout_ms: Option<i32>,
    pub op_timeout_ms: Option<i32>,
    pub liveness_timeout_ms: Option<i32>,
    pub close_timeout_ms: Option<i32>,
}

/// What the communicator knows of itself; see spark_comm_health in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    pub poisoned: bool,
    pub stuck: bool,
    pub epoch: u32,
    pub lost_count: i32,
    pub lost_rank: Option<i32>,
}

/// An opened communicator, on whichever backend the ranks agreed on. Dropping it closes it, which says
/// goodbye to the peers.
#[derive(Debug)]
pub struct Communicator {
    comm: *mut ffi::Comm,
}

// SAFETY: every function of the library may be called from any thread; Drop takes the value itself, so no
// other call can run then.
unsafe impl Send for Communicator {}
unsafe impl Sync for Communicator {}

fn text(value: &Option<String>) -> Result<Option<CString>> {
    let text = value.as_deref().map(CString::new).transpose();
    text.map_err(|_| Error { message: "a text has a 0 in it".into(), ..Error::new(Status::InvalidArgument) })
}

fn address(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

impl Communicator {
    /// Every rank of the world calls this; it returns when all have come and agreed.
    pub fn open(options: &Options) -> Result<Communicator> {
        let (backend, addr, token) = (text(&options.backend)?, text(&options.master_addr)?, text(&options.job_token)?);
        // SAFETY: options_init sets every field; the strings live until open has returned, which copies them.
        let (code, comm) = unsafe {
            let mut raw: ffi::Options = std::mem::zeroed();
            ffi::spark_comm_options_init(&mut raw, std::mem::size_of::<ffi::Options>());
            raw.backend = address(&backend);
            raw.master_addr = address(&addr);
            raw.job_token = address(&token);
            raw.stream = options.stream;
            raw.rank = options.rank.unwrap_or(raw.rank);
            raw.world_size = options.world_size.unwrap_or(raw.world_size);
            raw.master_port = options.master_port.map_or(raw.master_port, i32::from);
            raw.device = options.device.unwrap_or(raw.device);
            raw.dtype = options.dtype.map_or(raw.dtype, |dtype| dtype as i32);
            raw.rendezvous_timeout_ms = options.rendezvous_timeout_ms.unwrap_or(0);
            raw.op_timeout_ms = options.op_timeout_ms.unwrap_or(0);
            raw.liveness_timeout_ms = options.liveness_timeout_ms.unwrap_or(0);
            raw.close_timeout_ms = options.close_timeout_ms.unwrap_or(0);
            let mut comm = ptr::null_mut();
            (ffi::spark_comm_open(&raw, &mut comm), comm)
        };
        if code == 0 {
            Ok(Communicator { comm })
        } else {
            Err(Error::last(code, ptr::null()))
        }
    }

    fn check(&self, code: i32) -> Result<()> {
        if code == 0 {
            Ok(())
        } else {
            Err(Error::last(code, self.comm))
        }
    }

    /// Gives up, from any thread: this rank's waits end with `Aborted`, and the peers are told.
    pub fn abort(&self) -> Result<()> {
        // SAFETY: comm is open.
        self.check(unsafe { ffi::spark_comm_abort(self.comm) })
    }

    /// A whole command from rank 0 to all others.
    pub fn send_command(&self, words: &[u32]) -> Result<()> {
        // SAFETY: the words are only read, before the call returns.
        self.check(unsafe { ffi::spark_comm_send_command(self.comm, words.as_ptr(), words.len()) })
    }

    /// Rank 0's next command, however long it takes. Returns the number of words in `words`.
    pub fn recv_command(&self, words: &mut [u32]) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the library writes at most words.len() words.
        self.check(unsafe { ffi::spark_comm_recv_command(self.comm, words.as_mut_ptr(), words.len(), &mut count) })?;
        Ok(count)
    }

    /// As many bytes of every rank, in rank order: for votes and for comparing settings.
    pub fn exchange_host(&self, send: &[u8]) -> Result<Vec<u8>> {
        let mut recv = vec![0u8; send.len() * self.world_size() as usize];
        let (from, to) = (send.as_ptr() as *const c_void, recv.as_mut_ptr() as *mut c_void);
        // SAFETY: recv holds world_size times as many bytes, and does not overlap.
        self.check(unsafe { ffi::spark_comm_exchange_host(self.comm, from, to, send.len()) })?;
        Ok(recv)
    }

    pub fn health(&self) -> Result<Health> {
        // SAFETY: all fields may be zero; struct_size tells the library how many there are.
        let mut report: ffi::HealthReport = unsafe { std::mem::zeroed() };
        report.struct_size = std::mem::size_of::<ffi::HealthReport>();
        // SAFETY: comm is open, the report is ours.
        self.check(unsafe { ffi::spark_comm_health(self.comm, &mut report) })?;
        Ok(Health {
            poisoned: report.state == 2,
            stuck: report.activity == 3,
            epoch: report.epoch,
            lost_count: report.lost_count,
            lost_rank: (report.lost_rank >= 0).then_some(report.lost_rank),
        })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        // SAFETY: comm is open, and nobody else can call any more.
        unsafe { ffi::spark_comm_close(self.comm) }
    }
}

// SAFETY of all calls below: comm is open until drop, and the caller answers for addresses.
impl CommBackend for Communicator {
    fn rank(&self) -> i32 {
        unsafe { ffi::spark_comm_rank(self.comm) }
    }

    fn world_size(&self) -> i32 {
        unsafe { ffi::spark_comm_world_size(self.comm) }
    }

    unsafe fn all_reduce(&self, ptr: u64, bytes: usize) -> Result<()> {
        self.check(ffi::spark_comm_all_reduce(self.comm, ptr, bytes))
    }

    unsafe fn all_reduce_async(&self, ptr: u64, bytes: usize, compute_stream: u64) -> Result<()> {
        self.check(ffi::spark_comm_all_reduce_async(self.comm, ptr, bytes, compute_stream))
    }

    unsafe fn all_gather(&self, send_ptr: u64, recv_ptr: u64, bytes: usize) -> Result<()> {
        self.check(ffi::spark_comm_all_gather(self.comm, send_ptr, recv_ptr, bytes))
    }

    unsafe fn reduce_scatter(&self, send_ptr: u64, recv_ptr: u64, bytes: usize) -> Result<()> {
        self.check(ffi::spark_comm_reduce_scatter(self.comm, send_ptr, recv_ptr, bytes))
    }

    unsafe fn broadcast(&self, ptr: u64, bytes: usize, root: i32) -> Result<()> {
        self.check(ffi::spark_comm_broadcast(self.comm, ptr, bytes, root))
    }

    unsafe fn recv_command_u32(&self, ptr: u64, root: i32) -> Result<()> {
        self.check(ffi::spark_comm_recv_command_u32(self.comm, ptr, root))
    }

    fn barrier(&self) -> Result<()> {
        self.check(unsafe { ffi::spark_comm_barrier(self.comm) })
    }

    unsafe fn register_buffer(&self, ptr: u64, bytes: usize) -> Result<u64> {
        let mut handle = 0;
        self.check(ffi::spark_comm_register_buffer(self.comm, ptr, bytes, &mut handle))?;
        Ok(handle)
    }

    fn deregister_buffer(&self, handle: u64) -> Result<()> {
        self.check(unsafe { ffi::spark_comm_deregister_buffer(self.comm, handle) })
    }

    fn symmetric_alloc(&self, bytes: usize) -> Result<u64> {
        let mut ptr = 0;
        self.check(unsafe { ffi::spark_comm_symmetric_alloc(self.comm, bytes, &mut ptr) })?;
        Ok(ptr)
    }

    unsafe fn symmetric_free(&self, ptr: u64) -> Result<()> {
        self.check(ffi::spark_comm_symmetric_free(self.comm, ptr))
    }

    unsafe fn set_add_kernel(&self, handle: u64) -> Result<()> {
        self.check(ffi::spark_comm_set_add_kernel(self.comm, handle))
    }

    unsafe fn send_to(&self, ptr: u64, bytes: usize, dest_rank: i32, stream: u64) -> Result<()> {
        self.check(ffi::spark_comm_send_to(self.comm, ptr, bytes, dest_rank, stream))
    }

    unsafe fn recv_from(&self, ptr: u64, bytes: usize, src_rank: i32, stream: u64) -> Result<()> {
        self.check(ffi::spark_comm_recv_from(self.comm, ptr, bytes, src_rank, stream))
    }

    fn group_start(&self) -> Result<()> {
        self.check(unsafe { ffi::spark_comm_group_start(self.comm) })
    }

    fn group_end(&self) -> Result<()> {
        self.check(unsafe { ffi::spark_comm_group_end(self.comm) })
    }

    fn is_healthy(&self) -> bool {
        unsafe { ffi::spark_comm_is_healthy(self.comm) }
    }

    fn attempt_reconnect(&self) -> Result<()> {
        let code = unsafe { ffi::spark_comm_attempt_reconnect(self.comm) };
        // The communicator keeps the first cause; this thread's attempt has a sentence of its own.
        if code == 0 {
            Ok(())
        } else {
            Err(Error::last(code, ptr::null()))
        }
    }
}
