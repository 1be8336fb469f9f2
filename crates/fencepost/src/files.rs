//! Reading a file that somebody else may have made, or whose path somebody else may have chosen.

use rustix::fs::OFlags;
use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// Opens a regular file to read it. A pipe would wait for a writer, and a device may have no end.
pub fn open_regular(path: impl AsRef<Path>) -> io::Result<File> {
    // Without O_NONBLOCK the open itself would wait for the writer of a pipe.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

/// The text of a regular file with at most so many bytes.
pub fn text(path: impl AsRef<Path>, most: u64) -> io::Result<String> {
    text_of(open_regular(path)?, most)
}

/// The same for a file or a stream that is open already.
pub fn text_of(from: impl Read, most: u64) -> io::Result<String> {
    let mut text = String::new();
    from.take(most + 1).read_to_string(&mut text)?;
    match text.len() as u64 > most {
        true => Err(io::Error::other(format!("it is longer than {most} bytes"))),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, mkfifoat};

    #[test]
    fn only_regular_files_of_a_limited_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "four").unwrap();
        mkfifoat(CWD, dir.path().join("pipe"), Mode::RWXU).unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("endless")).unwrap();
        assert_eq!(text(&file, 4).unwrap(), "four");
        assert_eq!(text(&file, 3).unwrap_err().to_string(), "it is longer than 3 bytes");
        for other in ["pipe", "endless", "."] {
            let refused = text(dir.path().join(other), 4).unwrap_err();
            assert_eq!(refused.to_string(), "it is not a regular file", "{other}");
        }
        assert_eq!(text_of(io::repeat(b'x'), 9).unwrap_err().to_string(), "it is longer than 9 bytes");
    }
}
