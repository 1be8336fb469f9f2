use super::{
    super::{duration, wait_reason},
    text,
};
use crate::context::Context;
use clap::Args;
use fencepost::{Millis, Result, mail};
use std::process::ExitCode;

/// Claim the next messages of one or more mailboxes
///
/// Complete them with `mail done`, or give them back with `mail release`. If you do not renew the lease, others can claim them.
/// Exits 3 if no message is ready, and 6 if the mailbox is paused.
///
/// Examples:
///   fence mail claim session/42 --wait 1m
///   fence mail claim session/42 session/43 --count 10 --json
///   TOKEN=$(fence mail claim session/42 -q) && fence mail done $TOKEN
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Claim {
    /// Mailboxes, such as session/42
    #[arg(required = true, value_name = "MAILBOX")]
    mailboxes: Vec<String>,
    /// The most messages to claim  [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    count: Option<i64>,
    /// Lease: others may claim this run's messages if it is not renewed for this long  [default: the mailbox's, 5m]
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    ttl: Option<Millis>,
    /// The longest time that the claims may last, however often they are renewed
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    max: Option<Millis>,
    /// If no message is ready, wait up to this long
    #[arg(long, value_parser = duration, allow_hyphen_values = true)]
    wait: Option<Millis>,
    /// Print only the tokens
    #[arg(long, short)]
    quiet: bool,
}

impl Claim {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let op = |wait_ms| mail::Claim {
            mailboxes: self.mailboxes.clone(),
            run: context.run(),
            agent: context.agent(),
            count: self.count,
            ttl_ms: self.ttl,
            max_ms: self.max,
            wait_ms,
            request: context.request(),
        };
        let reply = match self.wait {
            None => context.call(op(None)).await?,
            wait => context.call_while_read(wait, op, wait_reason).await?,
        };
        context.remember(&reply.claims.iter().map(|taken| taken.claim.clone()).collect::<Vec<_>>());
        if let (true, Some(first)) = (self.quiet, reply.claims.first()) {
            context.warn_of_lease(&first.claim);
        }
        context.print(&reply, |reply| {
            let claims = reply.claims.iter().map(|taken| match self.quiet {
                true => taken.claim.token.clone(),
                false => text::claimed(&taken.claim, &taken.message, &context.terminal),
            });
            claims.collect::<Vec<_>>().join("\n")
        })
    }
}
