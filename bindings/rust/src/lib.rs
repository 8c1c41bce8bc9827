//! spark_comm for engines written in Rust: a trait with the operations that an engine calls
//! ([`CommBackend`]), one rank alone ([`SingleGpuBackend`]), and any communicator that the library can
//! open ([`Communicator`]).
//!
//! ```no_run
//! use spark_comm::{CommBackend, Communicator, Dtype, Options, SingleGpuBackend};
//!
//! fn layer(comm: &dyn CommBackend, partial: &mut [f32]) -> spark_comm::Result<()> {
//!     // SAFETY: the slice is ours until the call returns, on a host backend.
//!     unsafe { comm.all_reduce(partial.as_mut_ptr() as u64, std::mem::size_of_val(partial)) }
//! }
//!
//! # fn main() -> spark_comm::Result<()> {
//! let distributed = std::env::var_os("WORLD_SIZE").is_some();
//! let comm: Box<dyn CommBackend> = if distributed {
//!     Box::new(Communicator::open(&Options { dtype: Some(Dtype::F32), ..Default::default() })?)
//! } else {
//!     Box::new(SingleGpuBackend)
//! };
//! layer(&*comm, &mut [1.0; 4])
//! # }
//! ```
mod backend;
mod communicator;
mod error;
mod ffi;

pub use backend::{CommBackend, SingleGpuBackend};
pub use communicator::{Communicator, Dtype, Health, Options};
pub use error::{Error, Result, Status};

/// The version of the library that is loaded.
pub fn version() -> &'static str {
    // SAFETY: a constant of the library's.
    unsafe { std::ffi::CStr::from_ptr(ffi::spark_comm_version()) }.to_str().unwrap_or("")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::size_of;

    /// The sizes that the header's structs have on every 64-bit machine.
    #[test]
    fn layouts() {
        assert_eq!(size_of::<ffi::Options>(), 96);
        assert_eq!(size_of::<ffi::Error>(), 552);
        assert_eq!(size_of::<ffi::HealthReport>(), 112);
    }

    #[test]
    fn statuses() {
        for (code, name) in [(1, "SPARK_COMM_INVALID_ARGUMENT"), (104, "SPARK_COMM_SYSTEM"), (204, "SPARK_COMM_ABORTED")] {
            let status = Status::from_code(code);
            assert_eq!((status.code(), status.name()), (code, name));
        }
        for code in 0..300 {
            assert_eq!(Status::from_code(code).code(), code);
            assert_eq!(Status::from_code(code).is_fatal(), code >= 200);
        }
    }
}
