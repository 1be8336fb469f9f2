//! Merging a story into the loop's branch, and the end of the loop.

use super::{
    Chain,
    attempt::{Attempt, Decision, Halt},
    branch,
    command::{End, Finished},
    config::AtEnd,
};
use crate::{
    identity::process::own_program,
    names::unique,
    output::text::{line, shell_quoted},
    supervise::LeaseRenewer,
    worktree::some,
};
use fencepost::{Error, Millis, Op, Result, claim, lock, loops::Brief};
use std::process::Command;

/// The longest time for a merge. It checks a tree out.
const MERGE: Millis = Millis::minutes(20);

impl Attempt<'_> {
    /// Merges the commit that was judged into the loop's branch, under the loop's lock. Returns the failing verdict if they conflict.
    pub async fn merge(&self, commit: &str) -> Result<Option<Decision>, Halt> {
        let chain = self.chain;
        let (story, main) = (branch::of_story(&chain.id, &self.story.id), branch::main(&chain.id));
        let lock = self.held(chain.lock()).await??;
        let merged = self.merge_under(&lock, commit, &story, &main).await;
        chain.unlock(&lock).await;
        let finished = merged?;
        match finished.end {
            End::Exited(0) => Ok(None),
            End::Exited(1) => {
                let files =
                    String::from_utf8_lossy(&finished.stdout).lines().map(str::to_owned).collect::<Vec<_>>();
                let files = some(&files);
                let told = format!(
                    "merge conflict with `{main}` in {files}: merge `{main}` into your branch, resolve the conflicts, and commit"
                );
                self.chain.report.story(
                    &self.story.id,
                    "merge",
                    "conflict",
                    serde_json::json!({ "message": files }),
                );
                Ok(Some(Decision::fail(told)))
            }
            // The guard of the merge refused.
            End::Exited(3) => {
                self.guard("merge").await?;
                Err(Halt::Lost { at: "merge".into(), status: "lease_expired".into() })
            }
            _ => Err(Error::unavailable(finished.reason(&format!("merging `{story}` into `{main}`"))).into()),
        }
    }

    async fn merge_under(
        &self,
        lock: &claim::Claim,
        commit: &str,
        story: &str,
        main: &str,
    ) -> Result<Finished, Halt> {
        self.guard("merge").await?;
        let chain = self.chain;
        let message =
            format!("Merge story {}: {}\n\n{}", self.story.id, line(&self.story.title), self.trailer()?);
        let mut command = self.repository.merge_commit_command(commit, story, main, &message);
        command.envs(chain.variables(&self.claim.token, &self.story.id));
        chain.guard_merge(&mut command, &[lock, &self.claim])?;
        let renewer = LeaseRenewer::new(&chain.service.connection, chain.database_file.clone(), lock.clone());
        self.execute(renewer.and(vec![self.claim.clone()]), command, Vec::new(), MERGE).await
    }
}

impl Chain<'_> {
    /// Waits for the lock of the loop's branch.
    async fn lock(&self) -> Result<claim::Claim> {
        loop {
            let claim = lock::Claim {
                name: format!("loop/{}", self.id),
                run: self.run.clone(),
                agent: self.agent.clone(),
                ttl_ms: Some(self.config.lease),
                max_ms: None,
                wait_ms: Some(fencepost::WAIT_MAX),
                resume: true,
                request: Some(unique("")),
            };
            let answer = self.service.call_until_answered(claim).await;
            if !lock::Claim::not_yet(answer.as_ref()) {
                return answer.map(|held| held.claim);
            }
        }
    }

    /// Gives the lock back. If that fails, its lease ends.
    async fn unlock(&self, lock: &claim::Claim) {
        let _ = self.service.connection.call(claim::Release::new(&lock.token)).await;
    }

    /// A merge checks these claims right before it moves the branch.
    fn guard_merge(&self, command: &mut Command, claims: &[&claim::Claim]) -> Result<()> {
        let program = shell_quoted(&own_program());
        let guards: Vec<String> =
            claims.iter().map(|claim| format!("{program} guard {} >/dev/null", claim.token)).collect();
        command.env("FENCE_MERGE_GUARD", guards.join(" && "));
        self.service.context.pass_on(command)
    }

    /// Does with the loop's branch what the config says, once the loop is finished. Every chain that finds the loop finished does so:
    /// a branch that is merged or pushed already stays as it is.
    pub async fn finish(&self, brief: &Brief) -> Result<()> {
        self.report.finished(brief);
        let main = branch::main(&self.id);
        match &self.config.at_end {
            AtEnd::Leave => Ok(()),
            AtEnd::Push(remote) => {
                let lock = self.lock().await?;
                let renewer =
                    LeaseRenewer::new(&self.service.connection, self.database_file.clone(), lock.clone());
                let pushed = renewer.while_held(self.repository.push(remote, &main)).await;
                self.unlock(&lock).await;
                pushed??;
                self.report.note("end", "pushed", &format!("{main} to {remote}"));
                Ok(())
            }
            AtEnd::Merge(into) => {
                let lock = self.lock().await?;
                let merged = self.merge_at_end(&lock, &main, into).await;
                self.unlock(&lock).await;
                let finished = merged?;
                if !finished.is_success() {
                    return Err(Error::unavailable(
                        finished.reason(&format!("merging `{main}` into `{into}`")),
                    ));
                }
                self.report.note("end", "merged", &format!("{main} into {into}"));
                Ok(())
            }
        }
    }

    async fn merge_at_end(&self, lock: &claim::Claim, main: &str, into: &str) -> Result<Finished> {
        let message = format!("Merge loop {}", self.id);
        let mut command = self.repository.merge_command(main, into, &message);
        self.guard_merge(&mut command, &[lock])?;
        let renewer = LeaseRenewer::new(&self.service.connection, self.database_file.clone(), lock.clone());
        match self.execute(renewer, command, Vec::new(), MERGE).await {
            Ok(finished) => Ok(finished),
            Err(Halt::Failed(error)) => Err(error),
            Err(Halt::Stopped) => Err(Error::unavailable("the chain was told to end")),
            Err(Halt::Lost { status, .. }) => {
                Err(Error::unavailable(format!("the lock of the loop was lost: {status}")))
            }
        }
    }
}
