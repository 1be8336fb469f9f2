//! The fleet that an import writes to and an export reads.

use fencepost::{
    Op, Result,
    op::{self, AnyOp, AnyReply},
};
use futures_util::future::LocalBoxFuture;
use std::sync::Arc;

/// How this crate reaches a fleet. The caller may open its connection at the first call: a file that cannot be read is
/// then reported before a fleet that is missing.
pub trait Target {
    fn call(&self, op: Arc<dyn AnyOp>) -> LocalBoxFuture<'_, Result<AnyReply>>;

    /// The request id under which the import can be repeated. Each call gets an id of its own, made from this one.
    fn request(&self) -> Option<String>;

    /// Shows the progress to a user at a terminal.
    fn progress(&self, text: &str);
}

pub(crate) async fn call<O: Op>(target: &dyn Target, op: O) -> Result<O::Reply> {
    op::typed(target.call(op.erase()).await?)
}
