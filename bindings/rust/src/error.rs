use crate::ffi;
use std::ffi::CStr;
use std::fmt;

/// Why a call failed. Its class says what that means for the communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    InvalidArgument,
    NotSupported,
    WrongState,
    Busy,
    Unavailable,
    Refused,
    OpenTimeout,
    NoMemory,
    System,
    PeerLost,
    OpTimeout,
    Mismatch,
    Backend,
    Aborted,
    /// A status of a newer library; it goes by the class of its number.
    Other(i32),
}

const KNOWN: [(i32, Status); 14] = [
    (1, Status::InvalidArgument),
    (2, Status::NotSupported),
    (3, Status::WrongState),
    (4, Status::Busy),
    (100, Status::Unavailable),
    (101, Status::Refused),
    (102, Status::OpenTimeout),
    (103, Status::NoMemory),
    (104, Status::System),
    (200, Status::PeerLost),
    (201, Status::OpTimeout),
    (202, Status::Mismatch),
    (203, Status::Backend),
    (204, Status::Aborted),
];

impl Status {
    pub fn from_code(code: i32) -> Status {
        KNOWN.iter().find(|(number, _)| *number == code).map_or(Status::Other(code), |(_, status)| *status)
    }

    pub fn code(self) -> i32 {
        match self {
            Status::Other(code) => code,
            known => KNOWN.iter().find(|(_, status)| *status == known).map_or(0, |(number, _)| *number),
        }
    }

    /// The communicator is poisoned: every later call fails with the first cause, until
    /// `attempt_reconnect` succeeds.
    pub fn is_fatal(self) -> bool {
        (200..300).contains(&self.code())
    }

    /// The name in C, for example "SPARK_COMM_PEER_LOST".
    pub fn name(self) -> &'static str {
        // SAFETY: the library's strings are constants, UTF-8, and live as long as it is loaded.
        unsafe { CStr::from_ptr(ffi::spark_comm_status_name(self.code())) }.to_str().unwrap_or("")
    }

    fn text(self) -> &'static str {
        // SAFETY: as in name.
        unsafe { CStr::from_ptr(ffi::spark_comm_status_text(self.code())) }.to_str().unwrap_or("")
    }
}

/// A failure: its status, and the sentence that names the operation, the ranks and what to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub status: Status,
    /// The rank that the failure is about.
    pub peer: Option<i32>,
    /// Number of the operation on its lane; 0: it took none.
    pub sequence: u64,
    pub epoch: u32,
    /// errno or the native library's code; 0: none.
    pub native_code: i64,
    pub message: String,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of this crate's own, with the status's text.
    pub fn new(status: Status) -> Error {
        Error { status, peer: None, sequence: 0, epoch: 0, native_code: 0, message: status.text().into() }
    }

    pub fn is_fatal(&self) -> bool {
        self.status.is_fatal()
    }

    /// What the library says about the failure of a call on `comm`; null: of this thread's open.
    pub(crate) fn last(code: i32, comm: *const ffi::Comm) -> Error {
        let mut error = Error::new(Status::from_code(code));
        // SAFETY: all fields may be zero, and struct_size tells the library how many there are.
        let mut report: ffi::Error = unsafe { std::mem::zeroed() };
        report.struct_size = std::mem::size_of::<ffi::Error>();
        // SAFETY: comm is open or null; the report is ours.
        let st = unsafe { ffi::spark_comm_last_error(comm, &mut report) };
        // Another thread may have failed in between; then its sentence is not about this call.
        if st == 0 && report.status == code {
            // SAFETY: the library ends the message with a 0.
            let message = unsafe { CStr::from_ptr(report.message.as_ptr()) };
            error.message = message.to_string_lossy().into_owned();
            error.peer = (report.peer >= 0).then_some(report.peer);
            error.sequence = report.sequence;
            error.epoch = report.epoch;
            error.native_code = report.native_code;
        }
        error
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.status.name(), self.message)
    }
}

impl std::error::Error for Error {}
