//! An answer of the database that is believed for a moment, so that who may ask without a key does not make it work.

use fencepost::Result;
use std::time::Duration;
use tokio::{sync::Mutex, time::Instant};

/// So long it is believed.
const BELIEVED: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Recent<T>(Mutex<Option<(Instant, T)>>);

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Recent<T> {
    /// One asks for all who want to know.
    pub async fn get(&self, ask: impl Future<Output = Result<T>>) -> Result<T> {
        let mut recent = self.0.lock().await;
        // Real time: it decides how often the database is asked.
        if let Some((_, answer)) = recent.as_ref().filter(|(since, _)| since.elapsed() < BELIEVED) {
            return Ok(answer.clone());
        }
        *recent = None;
        let (since, answer) = (Instant::now(), ask.await?);
        *recent = Some((since, answer.clone()));
        Ok(answer)
    }
}
