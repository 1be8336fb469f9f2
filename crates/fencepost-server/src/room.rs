//! Memory for what is on its way, in or out: so many bytes in all.

use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// So much of everything is free: when all memory is taken by what is large, small requests are still served.
const FREE: usize = 16 * 1024;
/// What is counted: a permit is this many bytes.
const UNIT: usize = 1024;

#[derive(Debug, Clone)]
pub struct Room {
    units: Arc<Semaphore>,
    all: u32,
}

/// There is no memory left.
#[derive(Debug)]
pub struct NoRoom;

impl Room {
    pub fn new(bytes: usize) -> Self {
        let all = units(bytes);
        Self { units: Arc::new(Semaphore::new(all as usize)), all }
    }

    /// Nothing, which may grow.
    pub fn buffer(&self) -> Buffer {
        Buffer { room: self.clone(), bytes: Vec::new(), taken: None }
    }

    /// These bytes, which take their room until the last of them is dropped. What is larger than all of it has it alone.
    pub fn hold(&self, bytes: Vec<u8>) -> Result<Bytes, NoRoom> {
        let mut buffer = self.buffer();
        buffer.make_room(bytes.len())?;
        buffer.bytes = bytes;
        Ok(buffer.into())
    }

    /// Bytes that are taken.
    pub fn taken(&self) -> usize {
        (self.all as usize - self.units.available_permits()) * UNIT
    }
}

/// Bytes with the room that they take.
#[derive(Debug)]
pub struct Buffer {
    room: Room,
    bytes: Vec<u8>,
    taken: Option<OwnedSemaphorePermit>,
}

impl Buffer {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn push(&mut self, more: &[u8]) -> Result<(), NoRoom> {
        self.make_room(self.len() + more.len())?;
        self.bytes.extend_from_slice(more);
        Ok(())
    }

    fn make_room(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let wanted = units(bytes.saturating_sub(FREE)).min(self.room.all);
        let taken = self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = (wanted as usize).saturating_sub(taken);
        if missing == 0 {
            return Ok(());
        }
        let more = self.room.units.clone().try_acquire_many_owned(missing as u32).map_err(|_| NoRoom)?;
        match &mut self.taken {
            Some(taken) => taken.merge(more),
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
        // What took no room needs nobody to give it back.
        if buffer.taken.is_none() { buffer.bytes.into() } else { Bytes::from_owner(buffer) }
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
        let room = Room::new(100 * UNIT);
        let large = room.hold(vec![0; FREE + 60 * UNIT]).unwrap();
        assert_eq!(room.taken(), 60 * UNIT);
        room.hold(vec![0; FREE + 41 * UNIT]).unwrap_err();
        assert_eq!(room.hold(vec![0; FREE]).unwrap().len(), FREE);
        let slice = large.slice(..1);
        drop(large);
        assert_eq!(room.taken(), 60 * UNIT, "a part of it holds it");
        drop(slice);
        let huge = room.hold(vec![0; 1000 * UNIT]).unwrap();
        assert_eq!(room.taken(), 100 * UNIT, "it has all of it");
        drop(huge);
        let mut buffer = room.buffer();
        for _ in 0..116 {
            buffer.push(&[0; UNIT]).unwrap();
        }
        assert_eq!((buffer.len(), room.taken()), (116 * UNIT, 100 * UNIT));
        drop(Bytes::from(buffer));
        assert_eq!(room.taken(), 0);
    }
}
