//! Ops with their types erased. A call is typed where it is made and where its reply is read; everything in between
//! (client, fleet, waiting, delivery, both stores) handles an [`AnyOp`] and an [`AnyReply`], and is compiled once.

use super::{Access, Op};
use crate::{
    before::Before,
    clock::Millis,
    error::{Error, Result},
    json::Json,
    tx::{BoxFuture, Tx},
};
use std::{any::Any, sync::Arc};

/// A reply whose type is erased; [`typed`] restores it.
pub type AnyReply = Box<dyn Any + Send>;

/// Restores the type of a reply.
pub fn typed<T: 'static>(reply: AnyReply) -> Result<T> {
    reply.downcast().map(|reply| *reply).map_err(|_| Error::internal("the reply is of another op"))
}

/// A request whose type is erased: [`Op::erase`] makes it. See [`Op`] for the methods of the same names.
pub trait AnyOp: Send + Sync {
    fn name(&self) -> &'static str;
    fn access(&self) -> Access;
    fn reads(&self) -> bool;
    fn peeks(&self) -> bool;
    fn before(&self) -> Before;
    fn wait(&self) -> Option<Millis>;
    fn lock(&self) -> Option<&str>;
    fn not_yet(&self, answer: &Result<AnyReply>) -> bool;
    fn peek<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<Option<AnyReply>>>;
    fn run<'t>(&self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<AnyReply>>;
    /// The request as JSON.
    fn to_json(&self) -> Result<Json>;
    /// A reply to this request, as JSON.
    fn encode_reply(&self, reply: &AnyReply) -> Result<Vec<u8>>;
    /// A reply to this request, from its JSON.
    fn decode_reply(&self, json: &[u8]) -> serde_json::Result<AnyReply>;
}

/// The one implementation of [`AnyOp`].
struct Erased<O>(O);

pub(crate) fn erase<O: Op>(op: O) -> Arc<dyn AnyOp> {
    Arc::new(Erased(op))
}

fn typed_ref<T: 'static>(reply: &AnyReply) -> &T {
    reply.downcast_ref().expect("a reply is given only to the op that made it")
}

impl<O: Op> AnyOp for Erased<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }
    fn access(&self) -> Access {
        O::ACCESS
    }
    fn reads(&self) -> bool {
        O::READS
    }
    fn peeks(&self) -> bool {
        O::PEEKS
    }
    fn before(&self) -> Before {
        self.0.before()
    }
    fn wait(&self) -> Option<Millis> {
        self.0.wait()
    }
    fn lock(&self) -> Option<&str> {
        self.0.lock()
    }
    fn not_yet(&self, answer: &Result<AnyReply>) -> bool {
        O::not_yet(answer.as_ref().map(typed_ref))
    }
    fn peek<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<Option<AnyReply>>> {
        let peek = self.0.peek(tx);
        Box::pin(async move { Ok(peek.await?.map(|reply| Box::new(reply) as AnyReply)) })
    }
    fn run<'t>(&self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<AnyReply>> {
        let run = self.0.clone().run(tx);
        Box::pin(async move { Ok(Box::new(run.await?) as AnyReply) })
    }
    fn to_json(&self) -> Result<Json> {
        Json::of(&self.0)
    }
    fn encode_reply(&self, reply: &AnyReply) -> Result<Vec<u8>> {
        serde_json::to_vec(typed_ref::<O::Reply>(reply)).map_err(Error::internal)
    }
    fn decode_reply(&self, json: &[u8]) -> serde_json::Result<AnyReply> {
        serde_json::from_slice::<O::Reply>(json).map(|reply| Box::new(reply) as AnyReply)
    }
}

impl std::fmt::Debug for dyn AnyOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// For an op of the engine, inside its `impl Op`: compiles the op's own code (its future, its JSON) here and only here.
/// With the default of [`Op::erase`], every crate that calls the op would compile it again. `verbs!` insists on it.
macro_rules! erased {
    () => {
        const ERASED_HERE: bool = true;
        #[inline(never)]
        fn erase(self) -> std::sync::Arc<dyn $crate::op::AnyOp> {
            $crate::op::erase(self)
        }
    };
}
pub(crate) use erased;
