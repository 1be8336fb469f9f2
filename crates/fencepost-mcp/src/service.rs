//! The tools and resources as a service of `rmcp`.

use crate::{
    frame::framed,
    hints::refusal,
    host::{Call, Host},
    resources,
    session::Session,
    tools,
};
use fencepost::{Code, Error, Result};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, Implementation, ListResourceTemplatesResult,
        ListResourcesResult, ListToolsResult, PaginatedRequestParams, ProtocolVersion,
        ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, ServerCapabilities,
        ServerConfig, Tool,
    },
    service::RequestContext,
};
use serde_json::{Map, Value};
use std::{borrow::Cow, sync::Arc};

/// Three sentences that a client shows its model.
const INSTRUCTIONS: &str = "Several agents share the tasks here, and a task belongs to one of them at a time: call `claim` before you \
    work on one, `report` while you do, `guard` right before a push or another effect outside, and `finish` at the end. A refusal is an \
    answer with the next step in its hint; after lease_expired or cancelled stop that work at once. The resource fence://prime is a page \
    on all of it.";

/// The protocol versions that are tested, oldest first.
const VERSIONS: [ProtocolVersion; 3] =
    [ProtocolVersion::V_2025_06_18, ProtocolVersion::V_2025_11_25, ProtocolVersion::V_2026_07_28];

/// The service. It is cheap to clone.
#[derive(Clone)]
pub struct Mcp {
    host: Arc<dyn Host>,
}

impl std::fmt::Debug for Mcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mcp")
    }
}

impl Mcp {
    pub fn new(host: Arc<dyn Host>) -> Self {
        Self { host }
    }

    /// Answers a call of a tool. A call whose client cancels it is dropped, which gives back what it claims meanwhile.
    async fn answer(
        &self,
        tool: tools::Tool,
        given: Map<String, Value>,
        context: RequestContext<RoleServer>,
    ) -> Result<Value> {
        let args = tool.read(given)?;
        let cancelled = context.ct.clone();
        let call = call(context, args.text("run"));
        let session = Session::new(&*self.host, &call)?;
        tokio::select! {
            biased;
            () = cancelled.cancelled() => Err(Error::unavailable("the call was cancelled")),
            reply = async {
                session.begin().await;
                tool.run(&session, args).await
            } => reply,
        }
    }
}

fn call(context: RequestContext<RoleServer>, run: Option<String>) -> Call {
    let client = context.client_info().map(|client| client.name).unwrap_or_default();
    Call { id: context.id.to_string(), meta: context.meta, client, run, extensions: context.extensions }
}

/// A refusal of something that is no tool call, as a protocol error.
fn protocol_error(error: &Error) -> ErrorData {
    let data = Some(refusal(error));
    match error.code() {
        Code::NotFound => ErrorData::resource_not_found(error.message().to_owned(), data),
        Code::Invalid | Code::TooLarge => ErrorData::invalid_params(error.message().to_owned(), data),
        _ => ErrorData::internal_error(error.message().to_owned(), data),
    }
}

impl ServerHandler for Mcp {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("fence", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Owned(VERSIONS.to_vec())
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        Some(tools::find(name)?.definition())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::list()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = tools::find(&request.name) else {
            return Err(ErrorData::invalid_params(format!("there is no tool `{}`", request.name), None));
        };
        let answer = self.answer(tool, request.arguments.unwrap_or_default(), context).await;
        Ok(match answer {
            Ok(reply) => CallToolResult::structured(framed(reply)).into(),
            Err(error) => CallToolResult::structured_error(refusal(&error)).into(),
        })
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let call = call(context, None);
        let listed = resources::list(&Session::reading(&*self.host, &call)).await;
        listed.map(ListResourcesResult::with_all_items).map_err(|error| protocol_error(&error))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(resources::templates()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        if let Some(page) = resources::prime(&request.uri) {
            return Ok(ReadResourceResult::new(vec![page]).into());
        }
        let call = call(context, None);
        let read = resources::read(&Session::reading(&*self.host, &call), &request.uri).await;
        read.map(|page| ReadResourceResult::new(vec![page]).into()).map_err(|error| protocol_error(&error))
    }
}
