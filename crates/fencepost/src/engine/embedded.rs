//! Ops inside an open transaction: an embedder's, or another op's.

use super::{
    op::{AnyOp, Op, typed},
    prelude::Prelude,
};
use crate::{
    clock::Millis,
    db::{AnyReply, BoxFuture, Tx},
    error::{Error, Result},
};

impl Tx<'_> {
    /// Runs an op in this transaction. If it is refused, its changes are undone and the transaction goes on. (Its locks
    /// stay until the transaction ends.) An op cannot wait here: all other callers would wait with it.
    pub async fn call<O: Op>(&mut self, op: O) -> Result<O::Reply> {
        let op = op.erase();
        typed(self.call_any(&*op).await?)
    }

    fn call_any<'t>(&'t mut self, op: &'t dyn AnyOp) -> BoxFuture<'t, Result<AnyReply>> {
        Box::pin(async move {
            self.caller.may(op.name(), op.access())?;
            if op.wait().is_some_and(|wait| wait != Millis(0)) {
                return Err(Error::invalid(
                    "wait_ms",
                    "cannot be used in a transaction, which would stay open",
                )
                .hint("leave it out, or wait with Fleet::call before the transaction"));
            }
            let prelude = Prelude::of(op, &self.caller);
            self.open(&prelude).await?;
            self.execute("savepoint op", vec![]).await?;
            let reply = op.run(self).await;
            if reply.is_err() {
                self.execute("rollback to savepoint op", vec![]).await?;
            }
            self.execute("release savepoint op", vec![]).await?;
            reply
        })
    }

    /// Runs an op as a part of another op, whose prelude has found, locked, checked and renewed the run. A refused part
    /// normally has written nothing. If it has, the whole call starts over.
    pub(crate) async fn part<O: Op>(&mut self, op: O) -> Result<O::Reply> {
        let writes = self.notes.writes;
        let reply = op.erase().run(self).await;
        typed(self.part_of(O::NAME, writes, reply)?)
    }

    /// The answer of a part that began when the call had written this often: see [`Self::part`].
    pub(crate) fn part_of<T>(&self, name: &str, writes: usize, answer: Result<T>) -> Result<T> {
        answer.map_err(|error| match self.notes.writes == writes {
            true => error,
            false => Error::raced(format!("{name} lost a race: {}", error.message())),
        })
    }
}
