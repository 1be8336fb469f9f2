//! The agents on the way from a root to an item, and cycles among them.

use crate::{db::Tx, error::Result, params};

/// Steps that are followed, at most.
const STEPS: usize = 100;

/// The agents whose runs lead from the root to this item, in that order.
pub(super) async fn agents(tx: &mut Tx<'_>, item: &str) -> Result<Vec<String>> {
    let (mut agents, mut at) = (Vec::new(), item.to_owned());
    for _ in 0..STEPS {
        let rows = tx
            .query(
                "select triggered.agent, triggered.cause from caused join triggered on triggered.name = caused.run
                 and triggered.root = caused.root where caused.item = ?1 order by triggered.run desc limit 1",
                params![&at],
            )
            .await?;
        let Some(row) = rows.first() else { break };
        agents.push(row.get("agent")?);
        match row.get::<Option<String>>("cause")? {
            Some(cause) => at = cause,
            None => break,
        }
    }
    agents.reverse();
    Ok(agents)
}

/// The last cycle of a chain of agents: `ann → bob → ann`.
pub(super) fn cycle(agents: &[String]) -> Option<String> {
    let end = (1..agents.len()).rev().find(|&end| agents[..end].contains(&agents[end]))?;
    let begin = agents[..end].iter().rposition(|agent| *agent == agents[end])?;
    Some(agents[begin..=end].join(" → "))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_last_cycle_is_named() {
        for (chain, cycle) in [
            ("", None),
            ("a", None),
            ("a b c", None),
            ("a b a", Some("a → b → a")),
            ("a a", Some("a → a")),
            ("x a b c b", Some("b → c → b")),
            ("a b a c", Some("a → b → a")),
        ] {
            let agents: Vec<String> = chain.split_whitespace().map(str::to_owned).collect();
            assert_eq!(super::cycle(&agents).as_deref(), cycle, "{chain}");
        }
    }
}
