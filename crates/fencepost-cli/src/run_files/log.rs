//! The output of a child, in a file that rotates: a child that prints without end does not fill the disk.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

const NOW: &str = "log";
const BEFORE: &str = "log.1";
/// A file is renamed at this size, so that between this much and twice as much of the output is kept.
const LIMIT: u64 = 8 * 1024 * 1024;

#[derive(Debug)]
pub struct LogWriter {
    directory: PathBuf,
    file: File,
    size: u64,
    limit: u64,
}

impl LogWriter {
    pub fn open(directory: &Path) -> io::Result<Self> {
        Self::with_limit(directory, LIMIT)
    }

    fn with_limit(directory: &Path, limit: u64) -> io::Result<Self> {
        let file = new_file(directory)?;
        Ok(Self { directory: directory.to_owned(), size: file.metadata()?.len(), file, limit })
    }

    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        for part in bytes.chunks(usize::try_from(self.limit).unwrap_or(usize::MAX)) {
            if self.size + part.len() as u64 > self.limit {
                fs::rename(self.directory.join(NOW), self.directory.join(BEFORE))?;
                (self.file, self.size) = (new_file(&self.directory)?, 0);
            }
            self.file.write_all(part)?;
            self.size += part.len() as u64;
        }
        Ok(())
    }
}

fn new_file(directory: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(directory.join(NOW))
}

/// Reads the log from its oldest byte, and then what is added.
#[derive(Debug)]
pub struct LogReader {
    directory: PathBuf,
    file: File,
}

impl LogReader {
    pub fn open(directory: &Path) -> Option<Self> {
        let file = File::open(directory.join(BEFORE)).or_else(|_| File::open(directory.join(NOW))).ok()?;
        Some(Self { directory: directory.to_owned(), file })
    }

    /// The next bytes; 0 if there are no more yet.
    pub fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        loop {
            // The file may be renamed between the two steps, so its successor is looked for before its end is believed.
            let newer = self.newer()?;
            match (self.file.read(chunk)?, newer) {
                (0, Some(newer)) => self.file = newer,
                (n, _) => return Ok(n),
            }
        }
    }

    /// The file after this one, if this one was renamed.
    fn newer(&self) -> io::Result<Option<File>> {
        let is = |other: &File| -> io::Result<bool> {
            let (ours, other) = (self.file.metadata()?, other.metadata()?);
            Ok((ours.dev(), ours.ino()) == (other.dev(), other.ino()))
        };
        let newest = match File::open(self.directory.join(NOW)) {
            // The writer is between the renaming and the new file.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        if is(&newest)? {
            return Ok(None);
        }
        // Ours may be the one before, or have been replaced by it already. Then what was between is gone.
        match File::open(self.directory.join(BEFORE)) {
            Ok(before) if !is(&before)? => Ok(Some(before)),
            _ => Ok(Some(newest)),
        }
    }

    /// Moves to the last bytes of the newest file.
    pub fn seek_to_last(&mut self, bytes: u64) -> io::Result<()> {
        if let Some(newest) = self.newer()? {
            self.file = newest;
        }
        let size = self.file.metadata()?.len();
        self.file.seek(SeekFrom::Start(size.saturating_sub(bytes))).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(reader: &mut LogReader) -> String {
        let (mut text, mut chunk) = (Vec::new(), [0; 7]);
        while let n @ 1.. = reader.read(&mut chunk).unwrap() {
            text.extend_from_slice(&chunk[..n]);
        }
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn the_newest_output_is_kept_and_a_reader_follows() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = LogWriter::with_limit(dir.path(), 10).unwrap();
        assert_eq!(read_all(&mut LogReader::open(dir.path()).unwrap()), "");
        writer.write(b"0123456").unwrap();
        let mut follower = LogReader::open(dir.path()).unwrap();
        assert_eq!(read_all(&mut follower), "0123456");
        writer.write(b"789abc").unwrap();
        assert_eq!(read_all(&mut follower), "789abc", "it goes on in the next file");
        writer.write(b"def").unwrap();
        assert_eq!(read_all(&mut follower), "def");
        assert_eq!(read_all(&mut LogReader::open(dir.path()).unwrap()), "0123456789abcdef");
        writer.write(&[b'x'; 25]).unwrap();
        assert_eq!(read_all(&mut LogReader::open(dir.path()).unwrap()), "x".repeat(15));
        // A follower that was left behind goes on with the oldest output that is left.
        assert_eq!(read_all(&mut follower), "x".repeat(15));
        let mut last = LogReader::open(dir.path()).unwrap();
        last.seek_to_last(3).unwrap();
        assert_eq!(read_all(&mut last), "xxx");
        let size = |name| fs::metadata(dir.path().join(name)).unwrap().len();
        assert!(size(NOW) <= 10 && size(BEFORE) <= 10);
    }
}
