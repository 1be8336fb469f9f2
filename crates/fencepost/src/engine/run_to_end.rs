//! What runs to its end, whether or not whoever asked for it is still there.

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

/// A call that nothing stops halfway. It runs where it is awaited; dropped in the middle, it goes on in a task of its own,
/// and its answer is dropped there. (A task from the start would be the same. It costs a queue, a channel and two wakes
/// for each call, for the few whose caller hangs up.)
#[must_use = "it does nothing until it is awaited"]
pub struct RunToEnd<T: Send + 'static> {
    call: Option<BoxFuture<'static, T>>,
    /// Where it began. It may be dropped where no runtime is.
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
            // It fails alone: whoever awaits it has other calls to make.
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
            None => tracing::warn!("a call was dropped, and nothing runs that could bring it to its end"),
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
    async fn it_goes_on_when_it_is_dropped_in_the_middle_and_its_answer_is_dropped_there() {
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
    fn it_goes_on_where_it_began_when_it_is_dropped_elsewhere() {
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
    async fn one_that_panics_fails_alone() {
        let call = RunToEnd::<()>::new(async { panic!("boom") });
        assert!(call.await.unwrap_err().message().contains("panicked"));
        assert_eq!(RunToEnd::new(async { 1 }).await.unwrap(), 1);
    }
}
