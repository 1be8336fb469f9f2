//! Limits on what an importer reads. A stranger may have made the file, and all of it is in memory during an import.

use fencepost::{Code, Error};

/// The limits of one file.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// The most rows, or lines.
    pub rows: usize,
    /// The most bytes of a value, of a row or of a line.
    pub value: usize,
    /// The most bytes in all.
    pub total: usize,
    /// The most columns of a table that are computed. SQLite computes all of a row before anybody can count their bytes.
    pub computed: usize,
}

/// The longest item of an export is a task with 200 notes and 200 lines of progress of 16 KiB each: 6 MiB, and 12 with every
/// character escaped. In memory a row takes up to three times its bytes.
pub const LIMITS: Limits =
    Limits { rows: 1_000_000, value: 16 * 1024 * 1024, total: 1024 * 1024 * 1024, computed: 2 };

/// The memory of a value in a row besides its own bytes. A small file can have many such values: columns that are computed.
const VALUE_OVERHEAD: usize = 64;

/// What was read of one file so far.
#[derive(Debug)]
pub struct Meter {
    limits: Limits,
    rows: usize,
    bytes: usize,
}

impl Meter {
    pub fn new(limits: Limits) -> Self {
        Self { limits, rows: 0, bytes: 0 }
    }

    pub fn row(&mut self) -> Result<(), TooLarge> {
        self.rows += 1;
        if self.rows > self.limits.rows { Err(TooLarge::Rows(self.limits.rows)) } else { Ok(()) }
    }

    /// A value of a row, with this many bytes. SQLite itself refuses one that is too large.
    pub fn value(&mut self, bytes: usize) -> Result<(), TooLarge> {
        self.bytes += bytes + VALUE_OVERHEAD;
        if self.bytes > self.limits.total { Err(TooLarge::Total(self.limits.total)) } else { Ok(()) }
    }
}

/// The limit that a file exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooLarge {
    Rows(usize),
    Value(usize),
    Total(usize),
    Computed(usize),
}

impl std::fmt::Display for TooLarge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TooLarge::Rows(most) => write!(f, "it has more than {most} rows"),
            TooLarge::Value(most) => write!(f, "it has a value or a row with more than {most} bytes"),
            TooLarge::Total(most) => write!(f, "it has more than {most} bytes"),
            TooLarge::Computed(most) => write!(f, "a table has more than {most} computed columns"),
        }
    }
}

impl std::error::Error for TooLarge {}

impl TooLarge {
    /// The error of an import from this file.
    pub fn of(self, file: &str) -> Error {
        Error::new(Code::TooLarge, format!("`{file}` is too large for an import: {self}"))
            .hint("import it in parts: copy a part of its rows to another file")
    }
}
