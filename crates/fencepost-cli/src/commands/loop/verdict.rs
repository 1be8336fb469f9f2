use super::{Held, given_text, one_of, text};
use crate::context::Context;
use clap::Args;
use fencepost::{
    Result,
    loops::{self, Judgement},
};
use std::process::ExitCode;

/// Give the verdict on the story you hold: pass, fail or skip
///
/// The verdict names the commit that was judged, which must be the one that the last step recorded. A failing verdict needs feedback for
/// the next attempt; past its retries the story is skipped. The same verdict again changes nothing, and another one is refused.
///
/// Examples:
///   fence loop verdict pass --commit "$commit"
///   fence loop verdict fail --commit "$commit" --feedback "the tests fail"
///   fence loop verdict skip --feedback "not worth it"
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Verdict {
    /// pass, fail or skip
    #[arg(value_name = "VERDICT")]
    verdict: String,
    #[command(flatten)]
    held: Held,
    /// The commit that was judged
    #[arg(long, value_name = "ID")]
    commit: Option<String>,
    /// For the next attempt; @FILE is a file, - is standard input
    #[arg(long, value_name = "TEXT")]
    feedback: Option<String>,
}

impl Verdict {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = loops::Verdict {
            verdict: one_of("verdict", &Judgement::ALL, Judgement::as_str, &self.verdict)?,
            token: self.held.token(context).await?,
            commit: self.commit,
            feedback: self.feedback.map(given_text).transpose()?,
        };
        let reply = context.call(op).await?;
        context.print(&reply, |reply| {
            let story = text::stories(std::slice::from_ref(&reply.story), &context.terminal);
            format!("{story}\n{}", text::head(&reply.brief, &context.terminal))
        })
    }
}
