//! The host of the tools: the process that serves MCP. It decides who calls, and for which run.

use fencepost::{
    BoxFuture, Millis, Result,
    claim::Claim,
    op::{AnyOp, AnyReply},
};
use rmcp::model::{Extensions, RequestMetaObject};
use std::sync::Arc;

/// One call of a client.
#[derive(Debug)]
pub struct Call {
    /// The id of its JSON-RPC request, which is unique on its connection.
    pub id: String,
    pub meta: RequestMetaObject,
    /// The name that the client gives itself, or nothing.
    pub client: String,
    /// The argument `run`.
    pub run: Option<String>,
    /// Over HTTP: the head of the request.
    pub extensions: Extensions,
}

/// The run that a call acts for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acting {
    pub run: String,
    /// The client's session. It is the run, if no argument names another.
    pub session: String,
    /// Somebody chose the name, so that other sessions may share the run.
    pub named: bool,
}

pub trait Host: Send + Sync + 'static {
    /// The run that a call acts for, or a refusal that says how to name it.
    fn acting(&self, call: &Call) -> Result<Acting>;

    /// A call of a tool begins.
    fn begin<'h>(&'h self, call: &'h Call, acting: &'h Acting) -> BoxFuture<'h, ()>;

    /// Calls an op from within a run, or without one if its name is empty. Dropping the future gives back what it claims.
    fn call<'h>(
        &'h self,
        call: &'h Call,
        acting: &'h Acting,
        op: Arc<dyn AnyOp>,
    ) -> BoxFuture<'h, Result<AnyReply>>;

    /// The agent that the client acts for.
    fn agent(&self, call: &Call) -> Option<String>;

    /// The claim that the client was started under. Such a client polls for nothing else.
    fn default_claim(&self) -> Option<String>;

    /// The lease of a run that claims something.
    fn lease(&self) -> Millis;

    /// A call made these claims. Returns a warning for the agent if they are not renewed by themselves.
    fn claimed<'h>(
        &'h self,
        call: &'h Call,
        acting: &'h Acting,
        claims: &'h [Claim],
    ) -> BoxFuture<'h, Option<String>>;

    /// The agent acknowledges that its session lost claims. Returns their tokens. A host that is not on the client's machine has no record
    /// of that: the client's hook writes it when it sees the call.
    fn acknowledged<'h>(&'h self, _: &'h Call, _: &'h Acting) -> BoxFuture<'h, Result<Vec<String>>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// A call ended a claim.
    fn ended(&self);
}
