use crate::{Error, Result, Status};

/// The operations that an engine calls: those of spark_comm.h without the prefix. An engine that has a
/// communication layer of its own implements this trait for it too, and chooses at run time.
///
/// The default methods are one rank alone, as backend `single` of the library is: every operation
/// succeeds at once and touches no memory.
///
/// Pointers are addresses as numbers: of device memory on device backends, of host memory on host
/// backends. Sizes are bytes, streams are CUstreams as numbers (host backends ignore them). The header
/// has the whole contract of each call.
///
/// # Safety
///
/// Methods that are unsafe read or write memory at the addresses given. It must be valid over its whole
/// length, and left alone by others, until the operation is complete: on host backends when the call
/// returns, on stream-ordered ones when the stream has passed it. Registered ranges stay mapped until
/// they are deregistered, and a kernel's module stays loaded while it is set.
pub trait CommBackend: Send + Sync {
    fn rank(&self) -> i32 {
        0
    }

    fn world_size(&self) -> i32 {
        1
    }

    /// In-place sum over all ranks, of elements of the type chosen at opening.
    unsafe fn all_reduce(&self, _ptr: u64, _bytes: usize) -> Result<()> {
        Ok(())
    }

    /// The same, ordered by events with `compute_stream`; the host never waits.
    unsafe fn all_reduce_async(&self, _ptr: u64, _bytes: usize, _compute_stream: u64) -> Result<()> {
        Ok(())
    }

    /// `bytes` of each rank; `recv_ptr` holds `world_size * bytes`.
    unsafe fn all_gather(&self, _send_ptr: u64, _recv_ptr: u64, _bytes: usize) -> Result<()> {
        Ok(())
    }

    /// `bytes` of the result on each rank; `send_ptr` holds `world_size * bytes`.
    unsafe fn reduce_scatter(&self, _send_ptr: u64, _recv_ptr: u64, _bytes: usize) -> Result<()> {
        Ok(())
    }

    unsafe fn broadcast(&self, _ptr: u64, _bytes: usize, root: i32) -> Result<()> {
        check_rank(root)
    }

    /// The receiving half of the root's next 4-byte broadcast; waits through any idle time.
    unsafe fn recv_command_u32(&self, _ptr: u64, _root: i32) -> Result<()> {
        Err(Error::new(Status::InvalidArgument)) // refused on the root, which one rank alone is
    }

    fn barrier(&self) -> Result<()> {
        Ok(())
    }

    /// A handle; 0 where registration does nothing.
    unsafe fn register_buffer(&self, _ptr: u64, _bytes: usize) -> Result<u64> {
        Ok(0)
    }

    fn deregister_buffer(&self, handle: u64) -> Result<()> {
        zero_or(handle, Status::InvalidArgument)
    }

    /// Collective: memory that peers can reach.
    fn symmetric_alloc(&self, _bytes: usize) -> Result<u64> {
        Err(Error::new(Status::NotSupported))
    }

    unsafe fn symmetric_free(&self, ptr: u64) -> Result<()> {
        if ptr == 0 {
            return Ok(());
        }
        Err(Error::new(Status::NotSupported))
    }

    /// Collective: a CUfunction `(dst, src, int n)` that adds bf16 numbers; 0: the built-in one.
    unsafe fn set_add_kernel(&self, _handle: u64) -> Result<()> {
        Ok(())
    }

    unsafe fn send_to(&self, _ptr: u64, _bytes: usize, dest_rank: i32, _stream: u64) -> Result<()> {
        check_rank(dest_rank)
    }

    unsafe fn recv_from(&self, _ptr: u64, _bytes: usize, src_rank: i32, _stream: u64) -> Result<()> {
        check_rank(src_rank)
    }

    /// The send_to and recv_from of this thread, until group_end, progress together.
    fn group_start(&self) -> Result<()> {
        Ok(())
    }

    /// Waits for what was posted, whose memory must be good as in send_to and recv_from.
    fn group_end(&self) -> Result<()> {
        Ok(())
    }

    fn is_healthy(&self) -> bool {
        true
    }

    /// Collective among survivors and replacements: a new epoch, or the same error on all.
    fn attempt_reconnect(&self) -> Result<()> {
        Ok(())
    }
}

fn check_rank(rank: i32) -> Result<()> {
    zero_or(rank as u64, Status::InvalidArgument)
}

fn zero_or(value: u64, status: Status) -> Result<()> {
    if value == 0 {
        Ok(())
    } else {
        Err(Error::new(status))
    }
}

/// One GPU: nothing to communicate with, no library call, no cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleGpuBackend;

impl CommBackend for SingleGpuBackend {}
