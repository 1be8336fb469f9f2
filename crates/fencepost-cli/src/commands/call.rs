use super::{check_person, text};
use crate::context::Context;
use clap::Args;
use fencepost::{Op, Result, op, run};
use std::process::ExitCode;

/// Call any op of the engine by its name, with its request as JSON
///
/// Without a name it lists all ops.
///
/// Examples:
///   fence call task/why '{"task": "auth-3"}'
///   fence call admin/check
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Call {
    /// The op, as noun/verb
    name: Option<String>,
    /// The request: JSON, @file, or - for standard input
    #[arg(default_value = "{}")]
    request: String,
}

impl Call {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let Some(name) = self.name else { return list(context) };
        if op::find(&name)?.name == run::Lift::NAME {
            check_person("lifts the guard")?;
        }
        let reply = context.call_by_name(&name, &text(self.request)?).await?;
        match context.json() {
            true => context.print_json(&reply.to_string()),
            false => context.print_json(&serde_json::to_string_pretty(&reply).unwrap_or_default()),
        }
    }
}

fn list(context: &Context) -> Result<ExitCode> {
    let ops: Vec<_> = op::registry()
        .iter()
        .map(|entry| {
            let schema = (entry.request)().to_value();
            let about = schema.get("description").and_then(|d| d.as_str()).unwrap_or_default();
            let first = about.split(['.', ':']).next().unwrap_or_default().replace('\n', " ");
            serde_json::json!({ "name": entry.name, "about": first })
        })
        .collect();
    context.print(&ops, |ops| {
        let line = |op: &serde_json::Value| {
            format!(
                "{:<18} {}",
                op["name"].as_str().unwrap_or_default(),
                op["about"].as_str().unwrap_or_default()
            )
        };
        ops.iter().map(line).collect::<Vec<_>>().join("\n")
    })
}
