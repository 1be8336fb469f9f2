//! A client of `rmcp`, connected to the tools of a fleet by a pipe.

use fencepost::{
    BoxFuture, Error, Fleet, Millis, Result,
    claim::Claim,
    op::{AnyOp, AnyReply},
};
use fencepost_mcp::{Acting, Call, Connection, Host, Mcp, session_run};
use fencepost_testing::{PATIENCE, World};
use rmcp::{
    RoleClient, ServiceExt,
    model::{CallToolRequestParams, ClientCapabilities, ClientConfig, Implementation, RequestMetaObject},
    service::{RunningService, ServiceError},
};
use serde_json::{Map, Value};
use std::sync::Arc;

/// A host that acts for the run that the arguments or `_meta` name, else for `own`.
#[derive(Debug)]
pub struct Local {
    pub fleet: Fleet,
    pub own: String,
    pub agent: Option<String>,
    pub claim: Option<String>,
}

impl Local {
    pub fn new(world: &World, own: &str) -> Self {
        Self { fleet: world.fleet.clone(), own: own.into(), agent: None, claim: None }
    }
}

impl Host for Local {
    fn acting(&self, call: &Call) -> Result<Acting> {
        let session = session_run(&call.client, &call.meta).unwrap_or_else(|| self.own.clone());
        let run = call.run.clone().unwrap_or_else(|| session.clone());
        if run == "refused" {
            return Err(Error::invalid("run", "is refused"));
        }
        Ok(Acting { run, session, named: call.run.is_some() })
    }

    fn begin<'h>(&'h self, _: &'h Call, _: &'h Acting) -> BoxFuture<'h, ()> {
        Box::pin(std::future::ready(()))
    }

    fn call<'h>(
        &'h self,
        _: &'h Call,
        acting: &'h Acting,
        op: Arc<dyn AnyOp>,
    ) -> BoxFuture<'h, Result<AnyReply>> {
        Box::pin(async move {
            let fleet = match &self.agent {
                Some(agent) => self.fleet.as_agent(agent),
                None => self.fleet.clone(),
            };
            let fleet = if acting.run.is_empty() { fleet } else { fleet.in_run(&acting.run) };
            let (reply, delivery) = fleet.deliver_any(op).await?;
            delivery.delivered();
            Ok(reply)
        })
    }

    fn agent(&self, _: &Call) -> Option<String> {
        self.agent.clone()
    }

    fn default_claim(&self) -> Option<String> {
        self.claim.clone()
    }

    fn lease(&self) -> Millis {
        Millis::minutes(30)
    }

    fn claimed<'h>(&'h self, _: &'h Call, _: &'h Acting, _: &'h [Claim]) -> BoxFuture<'h, Option<String>> {
        Box::pin(std::future::ready(None))
    }

    fn ended(&self) {}
}

/// Serves the host on one end of a pipe, and returns the other end.
pub fn served(host: Local) -> tokio::io::DuplexStream {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (read, write) = tokio::io::split(ours);
    tokio::spawn(Arc::new(Connection::default()).serve(Mcp::new(Arc::new(host)), read, write));
    theirs
}

pub fn config(name: &str) -> ClientConfig {
    ClientConfig::new(ClientCapabilities::default(), Implementation::new(name, "1"))
}

/// A connected client.
pub struct Client {
    pub peer: RunningService<RoleClient, ClientConfig>,
    pub meta: Value,
}

impl Client {
    pub async fn new(host: Local) -> Self {
        let peer = config("claude-code").serve(served(host)).await.expect("a connection");
        Self { peer, meta: Value::Null }
    }

    /// Calls with this `_meta`.
    pub fn with_meta(mut self, meta: Value) -> Self {
        self.meta = meta;
        self
    }

    /// Calls a tool. The text of the result has the same content as its structure.
    pub async fn call(&self, tool: &str, arguments: Value) -> Answer {
        let result = self.try_call(tool, arguments).await.expect("a result of the tool");
        let text = result.content.first().and_then(|content| content.as_text()).expect("a text");
        let said: Value = serde_json::from_str(&text.text).expect("JSON");
        let structure = result.structured_content.expect("a structure");
        assert_eq!(said, structure, "{tool}");
        assert!(structure.is_object(), "{structure}");
        assert_eq!(result.is_error == Some(true), structure.get("error").is_some(), "{structure}");
        Answer(structure)
    }

    pub async fn try_call(
        &self,
        tool: &str,
        arguments: Value,
    ) -> Result<rmcp::model::CallToolResult, ServiceError> {
        let arguments: Map<String, Value> = arguments.as_object().expect("an object").clone();
        let mut params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        params.meta = serde_json::from_value::<RequestMetaObject>(self.meta.clone()).ok();
        let call = tokio::time::timeout(PATIENCE, self.peer.call_tool(params));
        call.await.expect("an answer in time")
    }

    /// Calls a tool, which must not refuse.
    #[track_caller]
    pub fn ok(&self, tool: &str, arguments: Value) -> impl Future<Output = Value> {
        let at = std::panic::Location::caller();
        async move {
            let Answer(reply) = self.call(tool, arguments).await;
            assert!(reply.get("error").is_none(), "{at}: {reply}");
            reply
        }
    }

    /// Calls a tool, which must refuse, and returns the code.
    pub async fn refused(&self, tool: &str, arguments: Value) -> String {
        let Answer(reply) = self.call(tool, arguments).await;
        reply["error"]["code"].as_str().unwrap_or_else(|| panic!("{tool} did not refuse: {reply}")).to_owned()
    }
}

/// The structure of a tool's result.
#[derive(Debug)]
pub struct Answer(pub Value);
