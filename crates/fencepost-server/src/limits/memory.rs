//! A memory budget for large requests or replies in transit.

use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The first bytes of each buffer do not count. Small requests are served even when large ones use up the budget.
const FREE: usize = 16 * 1024;
/// One permit of the semaphore stands for this many bytes.
const UNIT: usize = 1024;

#[derive(Debug, Clone)]
pub struct Memory {
    units: Arc<Semaphore>,
    total: u32,
}

/// The budget is used up.
#[derive(Debug)]
pub struct OutOfMemory;

impl Memory {
    pub fn new(bytes: usize) -> Self {
        let total = units(bytes);
        Self { units: Arc::new(Semaphore::new(total as usize)), total }
    }

    /// An empty buffer.
    pub fn buffer(&self) -> Buffer {
        Buffer { memory: self.clone(), bytes: Vec::new(), reserved: None }
    }

    /// Counts these bytes until the last clone of them is dropped. Bytes larger than the whole budget are accepted if
    /// nothing else uses it.
    pub fn hold(&self, bytes: Vec<u8>) -> Result<Bytes, OutOfMemory> {
        let mut buffer = self.buffer();
        buffer.reserve(bytes.len())?;
        buffer.bytes = bytes;
        Ok(buffer.into())
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        (self.total as usize - self.units.available_permits()) * UNIT
    }
}

/// Bytes, and their part of the budget.
#[derive(Debug)]
pub struct Buffer {
    memory: Memory,
    bytes: Vec<u8>,
    reserved: Option<OwnedSemaphorePermit>,
}

impl Buffer {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn push(&mut self, more: &[u8]) -> Result<(), OutOfMemory> {
        self.reserve(self.len() + more.len())?;
        self.bytes.extend_from_slice(more);
        Ok(())
    }

    fn reserve(&mut self, bytes: usize) -> Result<(), OutOfMemory> {
        let wanted = units(bytes.saturating_sub(FREE)).min(self.memory.total);
        let reserved = self.reserved.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = (wanted as usize).saturating_sub(reserved);
        if missing == 0 {
            return Ok(());
        }
        let more =
            self.memory.units.clone().try_acquire_many_owned(missing as u32).map_err(|_| OutOfMemory)?;
        match &mut self.reserved {
            Some(reserved) => reserved.merge(more),
            none => *none = Some(more),
        }
        Ok(())
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Buffer> for Bytes {
    fn from(buffer: Buffer) -> Self {
        // Bytes that reserved nothing have nothing to return.
        if buffer.reserved.is_none() { buffer.bytes.into() } else { Bytes::from_owner(buffer) }
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_is_free_and_large_waits_for_nobody() {
        let memory = Memory::new(100 * UNIT);
        let large = memory.hold(vec![0; FREE + 60 * UNIT]).unwrap();
        assert_eq!(memory.used(), 60 * UNIT);
        memory.hold(vec![0; FREE + 41 * UNIT]).unwrap_err();
        assert_eq!(memory.hold(vec![0; FREE]).unwrap().len(), FREE);
        let slice = large.slice(..1);
        drop(large);
        assert_eq!(memory.used(), 60 * UNIT, "a slice keeps the whole");
        drop(slice);
        let huge = memory.hold(vec![0; 1000 * UNIT]).unwrap();
        assert_eq!(memory.used(), 100 * UNIT, "it has the whole budget");
        drop(huge);
        let mut buffer = memory.buffer();
        for _ in 0..116 {
            buffer.push(&[0; UNIT]).unwrap();
        }
        assert_eq!((buffer.len(), memory.used()), (116 * UNIT, 100 * UNIT));
        drop(Bytes::from(buffer));
        assert_eq!(memory.used(), 0);
    }
}
