//! HTTP as every handler needs it: paths and headers, request bodies, query strings, refusals.

pub mod body;
pub mod query;
pub mod response;

/// The header that names the acting agent, for callers whose key names none.
pub const AGENT: &str = "fence-agent";

/// The header that names the run from within which the caller calls. It is the cause of new items, if it is the caller's own.
pub const RUN: &str = "fence-run";

/// The paths beside those of the ops.
pub mod path {
    pub const HEALTH: &str = "/healthz";
    pub const READINESS: &str = "/readyz";
    pub const METRICS: &str = "/metrics";
    pub const EVENTS: &str = "/v1/events";
    pub const OPENAPI: &str = "/v1/openapi.json";
    pub const DOCS: &str = "/docs";
    pub const SLACK: &str = "/hooks/slack";
    pub const GITHUB: &str = "/hooks/github";
    pub const MCP: &str = "/mcp";
}
