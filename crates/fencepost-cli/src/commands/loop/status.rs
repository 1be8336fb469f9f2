use super::text;
use crate::context::Context;
use clap::Args;
use fencepost::{Result, loops};
use std::process::ExitCode;

/// Show a loop and its stories
///
/// Examples:
///   fence loop status                             the active loop
///   fence loop status auth-v1 --story S-2         with the finished steps of a story
#[derive(Debug, Default, Args)]
#[command(verbatim_doc_comment)]
pub struct Status {
    /// The loop  [default: the active one]
    #[arg(value_name = "LOOP")]
    id: Option<String>,
    /// Also show the finished steps of this story
    #[arg(long, value_name = "STORY")]
    story: Option<String>,
}

impl Status {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let named = self.story.is_some();
        let reply = context.call(loops::Show { id: self.id, story: self.story }).await?;
        context.print(&reply, |reply| {
            let whole = text::whole(&reply.brief, &reply.stories, &context.terminal);
            match (named, reply.steps.is_empty()) {
                (true, true) => format!("{whole}\nno step of the story is finished"),
                (true, false) => format!("{whole}\n{}", text::steps(&reply.steps, &context.terminal)),
                (false, _) => whole,
            }
        })
    }
}
