//! A value read from the database and reused for a second. Callers without a key can therefore cause at most one read
//! a second.

use fencepost::Result;
use std::time::Duration;
use tokio::{sync::Mutex, time::Instant};

/// How long a value is reused.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Cache<T>(Mutex<Option<(Instant, T)>>);

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Cache<T> {
    /// The cached value, or a new one. Concurrent callers share one read.
    pub async fn get(&self, read: impl Future<Output = Result<T>>) -> Result<T> {
        let mut cached = self.0.lock().await;
        // Real time: it decides how often the database is asked.
        if let Some((_, value)) = cached.as_ref().filter(|(since, _)| since.elapsed() < FRESH) {
            return Ok(value.clone());
        }
        *cached = None;
        let (since, value) = (Instant::now(), read.await?);
        *cached = Some((since, value.clone()));
        Ok(value)
    }
}
