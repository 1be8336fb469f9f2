//! Ops with their types erased. A call has a type where it is made and where its reply is read. The code in between
//! (client, fleet, waiting, delivery, both stores) handles an [`AnyOp`] and an [`AnyReply`], and is compiled once.

use super::Op;
use crate::{
    caller::Access,
    clock::Millis,
    db::{AnyReply, BoxFuture, Tx},
    engine::prelude::Prelude,
    error::{Code, Error, Result},
    ids::Resource,
    json::Json,
    sync::lock,
};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

/// Restores the type of a reply.
pub fn typed<T: 'static>(reply: AnyReply) -> Result<T> {
    reply.downcast().map(|reply| *reply).map_err(|_| Error::internal("the reply is of another op"))
}

/// A request whose type is erased; [`Op::erase`] makes it. [`Op`] describes the methods of the same names.
pub trait AnyOp: Send + Sync {
    fn name(&self) -> &'static str;
    fn access(&self) -> Access;
    fn reads(&self) -> bool;
    fn peeks(&self) -> bool;
    fn prelude(&self) -> Prelude;
    fn wait(&self) -> Option<Millis>;
    fn contended(&self) -> Option<Resource>;
    fn not_yet(&self, answer: &Result<AnyReply>) -> bool;
    fn peek<'t>(&'t self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<Option<AnyReply>>>;
    fn run<'t>(&self, tx: &'t mut Tx<'_>) -> BoxFuture<'t, Result<AnyReply>>;
    /// The request's JSON Schema.
    fn schema(&self) -> schemars::Schema;
    /// The request as JSON.
    fn to_json(&self) -> Result<Json>;
    /// Encodes a reply to this request as JSON.
    fn encode_reply(&self, reply: &AnyReply) -> Result<Vec<u8>>;
    /// Decodes a reply to this request from JSON.
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
    fn prelude(&self) -> Prelude {
        self.0.prelude()
    }
    fn wait(&self) -> Option<Millis> {
        self.0.wait()
    }
    fn contended(&self) -> Option<Resource> {
        self.0.contended()
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
        Box::pin(async move {
            let reply = run.await.map_err(|error| listed(O::NAME, O::REFUSES, error))?;
            Ok(Box::new(reply) as AnyReply)
        })
    }
    fn schema(&self) -> schemars::Schema {
        schemars::schema_for!(O)
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

/// With debug assertions, replaces a refusal that the op does not list: documents and clients are made from that list.
pub(crate) fn listed(op: &str, refuses: &[Code], error: Error) -> Error {
    let code = error.code();
    if !cfg!(debug_assertions) || Code::OF_EVERY_OP.contains(&code) || refuses.contains(&code) {
        return error;
    }
    Error::internal(format!("{op} does not list the refusal {code} in its `refuses!`: {}", error.message()))
}

/// A digest of the op, the caller's key and the request's fields in any order. It tells a repeated request from a
/// different one under the same id. `wait_ms` is left out, because a client waits for less at each retry. Fields with
/// their default value are left out, because a later version may have more fields. `None` if the request cannot be
/// read.
pub(crate) fn digest(op: &dyn AnyOp, key: &str) -> Option<String> {
    let Ok(Value::Object(mut fields)) = op.to_json().and_then(|request| request.read()) else { return None };
    let defaults = default_fields(op);
    fields.retain(|name, value| {
        !(["request", "wait_ms"].contains(&name.as_str())
            || value.is_null()
            || defaults.get(name) == Some(value))
    });
    let mut hash = Sha256::new();
    for part in [op.name(), key] {
        hash.update(part);
        hash.update([0]);
    }
    hash.update(sorted(&Value::Object(fields)));
    Some(hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The optional fields of an op and their default values. Making a schema takes longer than most ops, so the result is
/// kept.
fn default_fields(op: &dyn AnyOp) -> Arc<Map<String, Value>> {
    static KNOWN: Mutex<BTreeMap<&str, Arc<Map<String, Value>>>> = Mutex::new(BTreeMap::new());
    let mut known = lock(&KNOWN);
    let made = known.entry(op.name()).or_insert_with(|| {
        let schema = op.schema().to_value();
        let fields = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
        let defaults = fields.filter_map(|(name, field)| Some((name.clone(), field.get("default")?.clone())));
        Arc::new(defaults.collect())
    });
    made.clone()
}

/// JSON with the fields of every object sorted by name.
fn sorted(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<_, _> = fields.iter().map(|(name, value)| (name, sorted(value))).collect();
            let fields: Vec<_> = fields
                .into_iter()
                .map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())))
                .collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(list) => {
            format!("[{}]", list.iter().map(sorted).collect::<Vec<_>>().join(","))
        }
        plain => plain.to_string(),
    }
}

impl std::fmt::Debug for dyn AnyOp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// For an op of the engine, inside its `impl Op`: compiles the op's own code (its future, its JSON) only in this crate.
/// With the default of [`Op::erase`], every crate that calls the op would compile it again. `verbs!` requires it.
macro_rules! erased {
    () => {
        const ERASED_HERE: bool = true;
        #[inline(never)]
        fn erase(self) -> std::sync::Arc<dyn $crate::engine::op::AnyOp> {
            $crate::engine::op::erase(self)
        }
    };
}
pub(crate) use erased;

/// For an op of the engine, inside its `impl Op`: the codes of [`Op::REFUSES`].
macro_rules! refuses {
    [$($code:ident),+] => {
        const REFUSES: &'static [$crate::error::Code] = &[$($crate::error::Code::$code),+];
    };
}
pub(crate) use refuses;
