//! Places that callers share: so many in all, and so many for each, so that none of them takes all.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

#[derive(Debug, Clone)]
pub struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    /// 0 is no limit.
    each: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by: HashMap<String, usize>,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// All are taken.
    All,
    /// The caller has its share.
    Share,
}

/// A place of one caller. It is given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Places,
    who: String,
}

impl Places {
    pub fn new(most: usize, each: usize) -> Self {
        Self(Arc::new(Shared { most, each, taken: Mutex::default() }))
    }

    pub fn take(&self, who: String) -> Result<Place, Full> {
        let mut taken = self.lock();
        if self.0.each > 0 && taken.by.get(&who).is_some_and(|own| *own >= self.0.each) {
            return Err(Full::Share);
        }
        if taken.all >= self.0.most {
            return Err(Full::All);
        }
        taken.all += 1;
        *taken.by.entry(who.clone()).or_default() += 1;
        Ok(Place { places: self.clone(), who })
    }

    pub fn taken(&self) -> usize {
        self.lock().all
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        taken.all -= 1;
        if let Some(own) = taken.by.get_mut(&self.who) {
            *own -= 1;
            if *own == 0 {
                taken.by.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_more_than_their_share_and_what_is_dropped_is_free() {
        let places = Places::new(3, 2);
        let take = |who: &str| places.take(who.to_owned());
        let (one, two) = (take("a").unwrap(), take("a").unwrap());
        assert_eq!(take("a").unwrap_err(), Full::Share);
        let three = take("b").unwrap();
        assert_eq!((take("c").unwrap_err(), places.taken()), (Full::All, 3));
        drop(one);
        let again = take("c").unwrap();
        drop((two, three, again));
        assert_eq!((places.taken(), places.lock().by.len()), (0, 0), "nothing is remembered of who is gone");
        let unshared = Places::new(3, 0);
        assert_eq!((0..4).map_while(|_| unshared.take("a".into()).ok()).collect::<Vec<_>>().len(), 3);
    }
}
