use super::{
    super::{PLAN_MAX, read_file},
    text,
};
use crate::context::Context;
use clap::{Args, ValueHint};
use fencepost::{Code, Error, Result, loops};
use std::process::ExitCode;

/// Start a loop from a plan; a second start changes nothing
///
/// The plan is a prd.json: {"project": …, "stories": [{"id", "title", "description", "acceptance_criteria": […], "priority",
/// "dependencies": […], "passes", "skipped"}]}. The lowest priority runs first. Stories that pass or are skipped already are not run.
///
/// A second start of the same loop returns it as it is, with "started": false in --json. A different plan under the same id is refused,
/// and the differences are shown. The id of a loop that is over is refused for ever.
///
/// Examples:
///   fence loop start auth-v1 --prd prd.json
///   fence loop start auth-v1 --prd prd.json --max-retries 1 --run-dependents
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Start {
    /// The loop's id, which is also the name of its board
    #[arg(value_name = "LOOP")]
    id: String,
    #[command(flatten)]
    plan: Plan,
}

/// The plan of a loop on the command line.
#[derive(Debug, Args)]
pub(super) struct Plan {
    /// The plan: a prd.json, or - for standard input
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    prd: Option<String>,
    /// The project  [default: the plan's]
    #[arg(long, requires = "prd")]
    project: Option<String>,
    /// How many failing verdicts a story may have and be tried again  [default: 2]
    #[arg(long, value_name = "N", requires = "prd")]
    max_retries: Option<i64>,
    /// How often stories may be claimed in all; then those that are left are skipped  [default: 100]
    #[arg(long, value_name = "N", requires = "prd")]
    max_iterations: Option<i64>,
    /// Run the stories that wait for a skipped one, instead of skipping them, too
    #[arg(long, requires = "prd")]
    run_dependents: bool,
}

impl Plan {
    /// The request, if a plan is given.
    pub fn start(self, id: String) -> Result<Option<loops::Start>> {
        let Some(file) = self.prd else { return Ok(None) };
        let prd = serde_json::from_str(&read_file(&file, PLAN_MAX)?)
            .map_err(|e| Error::new(Code::Invalid, format!("`{file}` is not JSON: {e}")))?;
        Ok(Some(loops::Start {
            id,
            project: self.project,
            stories: Vec::new(),
            prd: Some(prd),
            max_retries: self.max_retries,
            max_iterations: self.max_iterations,
            run_dependents: self.run_dependents,
        }))
    }
}

impl Start {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let start = self.plan.start(self.id)?.ok_or_else(|| {
            Error::new(Code::Invalid, "a loop needs a plan")
                .hint("name the file: fence loop start ID --prd prd.json")
        })?;
        let reply = context.call(start).await?;
        context.print(&reply, |reply| {
            let before = if reply.started { "" } else { "it was started before; this is its state now\n" };
            format!("{before}{}", text::whole(&reply.brief, &reply.stories, &context.terminal))
        })
    }
}
