use super::{super::text as read_text, content, resource, text};
use crate::{context::Context, keeper};
use clap::Args;
use fencepost::{Result, mail};
use std::process::ExitCode;

/// Complete messages that you hold, and store the outputs
///
/// Completion and outputs are stored in one transaction. Repeating the same completion returns the first reply; a different
/// completion of the same message is refused. Exits 5 if the claim is over; then the completion is not accepted.
///
/// Examples:
///   fence mail done message/7@1 --output '{"title": "found it"}' --output '{"title": "and more"}'
///   fence mail done message/7@1 --output @report.md --outcome responded
///   fence mail done message/8@1 message/9@1
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Done {
    /// The tokens that `mail claim` printed  [default: FENCE_CLAIM, else this run's only claim]
    #[arg(value_name = "TOKEN")]
    tokens: Vec<String>,
    /// An output: JSON or TEXT, @file, or - for standard input; may be given several times
    #[arg(long, value_name = "TEXT")]
    output: Vec<String>,
    /// The outcome, a word of your choice  [default: done]
    #[arg(long, value_name = "WORD")]
    outcome: Option<String>,
}

impl Done {
    pub async fn run(mut self, context: &Context) -> Result<ExitCode> {
        if self.tokens.len() > 1 && self.output.is_empty() {
            return self.many(context).await;
        }
        let outputs = std::mem::take(&mut self.output).into_iter();
        let outputs = outputs.map(|given| content::output(&read_text(given)?)).collect::<Result<_>>()?;
        let token = match self.tokens.as_slice() {
            [] => context.token(None).await?,
            [token] => context.token(Some(resource(token))).await?,
            _ => {
                return Err(fencepost::Error::invalid("output", "is of one message, and several are named"));
            }
        };
        let reply = context.call(mail::Done { token, outputs, outcome: self.outcome }).await?;
        keeper::wake_all(context);
        context.print(&reply, |reply| text::message(&reply.message, &context.terminal))
    }

    /// Each completion is accepted or refused by itself. The exit code is that of the first refusal.
    async fn many(self, context: &Context) -> Result<ExitCode> {
        let done = |token: String| mail::Done { token, outputs: vec![], outcome: self.outcome.clone() };
        let mut messages = Vec::new();
        for token in &self.tokens {
            messages.push(done(context.token(Some(resource(token))).await?));
        }
        let reply = context.call(mail::DoneMany { messages }).await?;
        keeper::wake_all(context);
        context.print(&reply, |reply| {
            let lines = reply.results.iter().map(|result| match (&result.message, &result.error) {
                (Some(message), _) => text::message(message, &context.terminal),
                (None, error) => {
                    let reason = error.as_ref().map_or("refused", |error| error.message());
                    format!("{}: {reason}", result.token)
                }
            });
            lines.collect::<Vec<_>>().join("\n")
        })?;
        let refused = reply.results.iter().find_map(|result| result.error.as_ref());
        Ok(refused.map_or(ExitCode::SUCCESS, |error| ExitCode::from(error.code().exit_code())))
    }
}
