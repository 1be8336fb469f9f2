//! The op: one verb, one struct. Every user interface is made from the registry of ops.

mod any;

use super::{delivery::Delivery, fleet::Fleet, prelude::Prelude};
use crate::{
    caller::Access,
    clock::Millis,
    db::Tx,
    error::{Code, Error, Result},
    ids::Resource,
};
#[cfg(test)]
pub(crate) use any::listed;
pub use any::{AnyOp, typed};
pub(crate) use any::{digest, erase, erased, refuses};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use std::sync::Arc;

/// The effect of repeating a request: may a client send it again when the answer was lost?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OnRetry {
    /// It changes nothing.
    Reads,
    /// The request has an id, and the same id gets the first reply.
    ByRequestId,
    /// It acts under a claim. The fence identifies the claim: a repeat renews it again, or finds that this claim was ended
    /// in the same way and returns the first reply.
    UnderClaim,
    /// Repeating it changes nothing and returns the first reply.
    Idempotent,
    /// A repeat could act a second time, on something that began meanwhile. The op's file says how.
    Never,
}

/// A verb. Its struct is the library call and the HTTP body; its doc comments are the help.
pub trait Op: Clone + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static {
    /// `task/claim`
    const NAME: &'static str;
    const ACCESS: Access;
    /// A former name that still works.
    const FORMERLY: Option<&'static str> = None;
    /// It changes nothing: it runs on a reader, and is also served by GET.
    const READS: bool = false;
    /// The effect of repeating a request, if its answer was lost.
    const ON_RETRY: OnRetry;
    /// An example request for the manual, as JSON.
    const EXAMPLE: &'static str;
    /// The codes of this op's own refusals, besides those of every op ([`Code::OF_EVERY_OP`]). `refuses!` lists
    /// them. With debug assertions any other refusal becomes an `internal` error, so a test that meets one fails.
    const REFUSES: &'static [Code] = &[];
    type Reply: Serialize + DeserializeOwned + JsonSchema + Send + 'static;

    /// Work committed even if this op is refused, and its opening reads.
    fn prelude(&self) -> Prelude {
        Prelude::nothing()
    }
    /// It first calls [`Self::peek`] on a reader, and writes only if there is something to do.
    const PEEKS: bool = false;
    /// The reply, if there is nothing to do. It may miss only things that are due, or that an event will announce.
    fn peek(&self, _tx: &mut Tx<'_>) -> impl Future<Output = Result<Option<Self::Reply>>> + Send {
        async { Ok(None) }
    }
    /// How long this request waits instead of getting a not-yet reply: its `wait_ms`.
    fn wait(&self) -> Option<Millis> {
        None
    }
    /// The one resource that this request claims, if many processes may contend for it. A process that was granted it
    /// many times in a row lets others go first.
    fn contended(&self) -> Option<Resource> {
        None
    }
    /// Is this answer a not-yet for a waiting caller? By default a refusal is one if there is nothing to take now, or
    /// if another run holds it.
    fn not_yet(answer: Result<&Self::Reply, &Error>) -> bool {
        answer.is_err_and(Error::is_not_yet)
    }
    fn run(self, tx: &mut Tx<'_>) -> impl Future<Output = Result<Self::Reply>> + Send;

    /// Erases the request's type.
    #[doc(hidden)]
    fn erase(self) -> Arc<dyn AnyOp> {
        erase(self)
    }
    /// This op overrides [`Self::erase`]: the engine's own ops do, by `erased!`.
    #[doc(hidden)]
    const ERASED_HERE: bool = false;
}

/// A visitor of every op: it builds a router, an OpenAPI document or a list of tools.
pub trait Visit {
    fn op<O: Op>(&mut self);
}

/// Declares a noun's verbs: the module, the re-export and the entry in the registry are one line each.
macro_rules! verbs {
    ($($file:ident::$op:ident),* $(,)?) => {
        $(
            pub mod $file;
            pub use $file::$op;
            const _: () = assert!(
                <$op as $crate::engine::op::Op>::ERASED_HERE,
                concat!("`", stringify!($op), "` needs `erased!();` in its impl of Op"),
            );
        )*
        pub(crate) fn visit(visitor: &mut impl $crate::engine::op::Visit) {
            $(visitor.op::<$op>();)*
        }
    };
}
pub(crate) use verbs;

/// A reply, ready for the wire.
#[derive(Debug)]
#[non_exhaustive]
pub struct Served {
    pub json: Vec<u8>,
    /// The reply's claims. Call [`Delivery::delivered`] when the reply has arrived; dropping it gives the claims back.
    pub delivery: Delivery,
}

/// An op without its types, for callers that have only its name and JSON.
#[derive(Clone)]
pub struct Entry {
    pub name: &'static str,
    /// See [`Op::FORMERLY`].
    pub formerly: Option<&'static str>,
    pub access: Access,
    pub reads: bool,
    pub on_retry: OnRetry,
    /// See [`Op::EXAMPLE`].
    pub example: &'static str,
    /// See [`Op::REFUSES`].
    pub refuses: &'static [Code],
    /// The request's JSON Schema; its description is the op's doc comment.
    pub request: fn() -> schemars::Schema,
    pub reply: fn() -> schemars::Schema,
    decode: fn(&[u8]) -> Result<Arc<dyn AnyOp>>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Entry {
    pub(crate) fn of<O: Op>() -> Self {
        Self {
            name: O::NAME,
            formerly: O::FORMERLY,
            access: O::ACCESS,
            reads: O::READS,
            on_retry: O::ON_RETRY,
            example: O::EXAMPLE,
            refuses: O::REFUSES,
            request: || schemars::schema_for!(O),
            reply: || schemars::schema_for!(O::Reply),
            decode: |json| Ok(decode::<O>(json)?.erase()),
        }
    }

    /// Reads a request; an error names the field that does not fit.
    pub fn decode(&self, json: impl AsRef<[u8]>) -> Result<Arc<dyn AnyOp>> {
        (self.decode)(json.as_ref())
    }

    /// Runs a request given as JSON, and returns its reply as JSON. As with [`Fleet::deliver`], the caller may hang up
    /// at any moment.
    pub async fn serve(&self, fleet: &Fleet, json: &[u8]) -> Result<Served> {
        // Checked before the request is read: a caller without access learns nothing about its fields.
        fleet.may(self.name, self.access)?;
        let op = self.decode(json)?;
        let (reply, delivery) = fleet.deliver_any(op.clone()).await?;
        Ok(Served { json: op.encode_reply(&reply)?, delivery })
    }

    /// The same as [`Self::serve`], with the reply parsed and delivered.
    pub async fn call(&self, fleet: &Fleet, json: &str) -> Result<serde_json::Value> {
        let served = self.serve(fleet, json.as_bytes()).await?;
        match serde_json::from_slice(&served.json) {
            Ok(reply) => {
                served.delivery.delivered();
                Ok(reply)
            }
            Err(e) => {
                let given_back = served.delivery.undelivered().await?;
                Err(unreadable(&e, given_back > 0))
            }
        }
    }
}

/// The error for a reply with JSON that cannot be read: it was stored before requests with such JSON were refused.
/// `given_back`: the reply's claims were given back.
pub fn unreadable(why: &serde_json::Error, given_back: bool) -> Error {
    let error = Error::internal(format!("the reply holds JSON that cannot be read: {why}"));
    match given_back {
        true => {
            error.hint("its claims were given back; fence mail claim hands over a message as it is stored")
        }
        false => error,
    }
}

/// Reads a request; an error names the field that does not fit.
pub fn decode<O: DeserializeOwned>(json: impl AsRef<[u8]>) -> Result<O> {
    let json = json.as_ref();
    // serde would also read a list as the fields in their order, which is no part of the contract.
    if !json.trim_ascii_start().starts_with(b"{") {
        return Err(Error::new(Code::Invalid, "the request does not fit: it is not a JSON object"));
    }
    let mut reader = serde_json::Deserializer::from_slice(json);
    let op = serde_path_to_error::deserialize(&mut reader).map_err(|e| {
        let path = e.path().to_string();
        let error = Error::new(Code::Invalid, format!("the request does not fit: {}", e.inner()));
        // If the text breaks off, the path ends in a question mark.
        if path == "." || path.ends_with('?') {
            error
        } else {
            Error::new(Code::Invalid, format!("`{path}`: {}", e.inner())).with("field", path)
        }
    })?;
    reader.end().map_err(|e| Error::new(Code::Invalid, format!("the request does not fit: {e}")))?;
    Ok(op)
}
