//! Calls that wait.

use super::Context;
use crate::output::{
    progress::{ClearOnInterrupt, Progress},
    streams,
    terminal::rough,
};
use fencepost::{Error, Millis, Op, Result, WAIT_MAX};
use std::time::Duration;
use tokio::time::Instant;

/// How often the progress line shows the state of a read.
const SHOW_READ: Millis = Millis::seconds(1);
/// How often it shows the holder of something that is to be claimed. Each new call goes to the end of the server's queue, so it
/// is seldom; the holder on the terminal is no older than this.
const SHOW_CLAIM: Millis = Millis::seconds(10);
/// Time for giving back what was claimed at the moment when the reader went away. After it, the lease has to expire. Nobody waits for
/// this process any more.
pub const GIVE_BACK: Duration = Duration::from_secs(30);

impl Context {
    /// Repeats the op until the reply is no "not yet" or the time is over. Without a limit it waits for ever.
    pub async fn call_waiting<O: Op>(
        &self,
        limit: Option<Millis>,
        op: impl Fn(Option<Millis>) -> O,
    ) -> Result<O::Reply> {
        let mut left = limit.unwrap_or(Millis(i64::MAX));
        loop {
            let wait = left.min(WAIT_MAX);
            let answer = self.call(op(Some(wait))).await;
            left = Millis(left.0 - wait.0);
            if left.0 <= 0 || !O::not_yet(answer.as_ref()) {
                return answer;
            }
        }
    }

    /// Waits as [`call_waiting`](Self::call_waiting) does. A terminal shows meanwhile what the command waits for, and how long.
    pub async fn call_with_progress<O: Op>(
        &self,
        limit: Option<Millis>,
        op: impl Fn(Option<Millis>) -> O,
        line: impl Fn(&Result<O::Reply>) -> String,
    ) -> Result<O::Reply> {
        let mut progress = Progress::new(self.json());
        if !progress.is_visible() {
            return self.call_waiting(limit, op).await;
        }
        let mut left = limit.unwrap_or(Millis(i64::MAX));
        let mut answer = self.call(op(None)).await;
        let began = Instant::now();
        while left.0 > 0 && O::not_yet(answer.as_ref()) {
            let what = line(&answer);
            let step = left.min(if O::READS { SHOW_READ } else { SHOW_CLAIM });
            left = Millis(left.0 - step.0);
            let mut call = std::pin::pin!(self.call(op(Some(step))));
            let mut redraw = tokio::time::interval(Duration::from_secs(1));
            answer = loop {
                tokio::select! {
                    biased;
                    answer = &mut call => break answer,
                    _ = redraw.tick() => {
                        let waited = rough(began.elapsed().into());
                        progress.show(|| format!("waiting {waited}: {what}"));
                    }
                }
            };
        }
        answer
    }

    /// Waits as [`call_with_progress`](Self::call_with_progress) does, and gives up when nobody reads standard output any more.
    /// Then nothing is claimed.
    pub async fn call_while_read<O: Op>(
        &self,
        limit: Option<Millis>,
        op: impl Fn(Option<Millis>) -> O,
        line: impl Fn(&Result<O::Reply>) -> String,
    ) -> Result<O::Reply> {
        let _clear = Progress::new(self.json()).is_visible().then(ClearOnInterrupt::new);
        self.while_read(self.call_with_progress(limit, op, line)).await.unwrap_or_else(|| {
            Err(Error::unavailable("nobody reads standard output any more, so the command stopped waiting"))
        })
    }

    /// Runs this while somebody reads standard output, and drops it when nobody does.
    pub async fn while_read<T>(&self, waiting: impl Future<Output = T>) -> Option<T> {
        unless(streams::reader_gone(), waiting).await
    }
}

/// Runs this until the one who waits for it is gone. Then it is dropped, and `None` is returned when what it claimed meanwhile
/// has been given back.
pub async fn unless<T>(gone: impl Future<Output = ()>, waiting: impl Future<Output = T>) -> Option<T> {
    let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = {
        let mut waiting = std::pin::pin!(waiting);
        tokio::select! {
            // A reply that arrives together with the hang-up would not be read.
            biased;
            () = gone => alive(),
            answer = &mut waiting => return Some(answer),
        }
    };
    // A call in flight continues in a task of its own, and gives back what it claimed.
    let given_back = async {
        while alive() > before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let _ = tokio::time::timeout(GIVE_BACK, given_back).await;
    None
}
