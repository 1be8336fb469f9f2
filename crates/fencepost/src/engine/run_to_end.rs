//! Calls that run to their end even if their caller is gone.

use crate::{
    db::BoxFuture,
    error::{Error, Result},
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll},
};
use tokio::runtime::Handle;

/// A call that runs to its end even if its caller drops it. It runs where it is awaited. Dropped before its end, it
/// goes on in a task of its own, and its answer is dropped there. (A task from the start would do the same, but costs
/// every call a queue, a channel and two wakes, for the few whose caller hangs up.)
#[must_use = "it does nothing until it is awaited"]
pub struct RunToEnd<T: Send + 'static> {
    call: Option<BoxFuture<'static, T>>,
    /// The runtime that first polled it: it may be dropped outside of any runtime.
    runtime: Option<Handle>,
}

impl<T: Send + 'static> RunToEnd<T> {
    pub fn new(call: impl Future<Output = T> + Send + 'static) -> Self {
        Self { call: Some(Box::pin(call)), runtime: None }
    }
}

impl<T: Send + 'static> Future for RunToEnd<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let Self { call: Some(call), runtime } = &mut *self else {
            return Poll::Ready(Err(Error::internal("the answer was taken already")));
        };
        if runtime.is_none() {
            *runtime = Handle::try_current().ok();
        }
        let answer = match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(answer)) => Ok(answer),
            // Only this call fails: the task that awaits it may serve other calls.
            Err(_) => Err(Error::internal("the op panicked")),
        };
        self.call = None;
        Poll::Ready(answer)
    }
}

impl<T: Send + 'static> Drop for RunToEnd<T> {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        match self.runtime.take().or_else(|| Handle::try_current().ok()) {
            Some(runtime) => drop(runtime.spawn(call)),
            None => tracing::warn!("a call was dropped, and no runtime is left to finish it"),
        }
    }
}

impl<T: Send + 'static> std::fmt::Debug for RunToEnd<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunToEnd").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn a_dropped_call_goes_on_and_its_answer_is_dropped_at_its_end() {
        let (go, gone) = oneshot::channel::<()>();
        let (answer, mut dropped) = oneshot::channel::<()>();
        let mut call = Box::pin(RunToEnd::new(async move {
            gone.await.expect("it is told to go on");
            answer
        }));
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(call);
        assert!(dropped.try_recv().is_err_and(|e| e == oneshot::error::TryRecvError::Empty));
        go.send(()).expect("someone still listens");
        assert!(dropped.await.is_err(), "the answer is dropped once it is there");
    }

    #[test]
    fn a_call_dropped_outside_of_a_runtime_goes_on_in_its_first_one() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (go, gone) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel::<()>();
        let mut call = Box::pin(RunToEnd::new(async move {
            gone.await.expect("it is told to go on");
            done.send(()).expect("someone waits for the end");
        }));
        let inside = runtime.enter();
        assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(inside);
        drop(call);
        go.send(()).expect("someone still listens");
        runtime.block_on(ended).expect("it came to its end");
    }

    #[tokio::test]
    async fn a_panic_becomes_an_error() {
        let call = RunToEnd::<()>::new(async { panic!("boom") });
        assert!(call.await.unwrap_err().message().contains("panicked"));
        assert_eq!(RunToEnd::new(async { 1 }).await.unwrap(), 1);
    }
}
