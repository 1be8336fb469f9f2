use super::chain;
use crate::{
    caller::Access,
    clock::Time,
    db::{Batch, Stmt, Tx},
    engine::op::{OnRetry, Op, erased},
    error::{Code, Error, Result},
    ids::clip,
    limits::check,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Items and runs of a chain that are shown, at most.
const NODES: i64 = 1000;

/// Show everything that one event caused: the tree of posts, messages, tasks and runs from the root of this item.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cause {
    /// `post/CHANNEL/N`, `message/ID`, `task/ID` or `run/NAME`.
    pub id: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tree {
    pub root: String,
    /// The nodes in the order of the tree: every node after its parent.
    pub nodes: Vec<Node>,
    /// Agents that woke each other, such as `ann → bob → ann`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cycles: Vec<String>,
    /// Not all of it is shown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// An item or a run of a tree of causes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    pub id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The number of nodes above it.
    pub level: i64,
    /// The number of mentions and wake-ups since the root.
    pub depth: i64,
    /// Of a run: its agent and its trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

impl Op for Cause {
    const NAME: &'static str = "storm/cause";
    const ACCESS: Access = Access::Reader;
    const ON_RETRY: OnRetry = OnRetry::Reads;
    const EXAMPLE: &'static str = r#"{"id":"post/general/12"}"#;
    const READS: bool = true;
    type Reply = Tree;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Tree> {
        check::line("id", &self.id, 300)?;
        let root = root_of(tx, &self.id).await?;
        let mut batch = Batch::new();
        let items = batch.add(Stmt::read(
            "select item, run, depth, at from caused where root = ?1 order by at, item limit ?2",
            params![&root, NODES],
        ));
        let runs = batch.add(Stmt::read(
            "select name, agent, kind, cause, depth, at from triggered where root = ?1 order by at, run limit ?2",
            params![&root, NODES],
        ));
        let mut answers = tx.send(batch).await?;
        let mut children = BTreeMap::<String, Vec<Node>>::new();
        let (items, runs) = (answers.take(items).rows, answers.take(runs).rows);
        for row in &items {
            let parent = format!("run/{}", row.get::<String>("run")?);
            let node = Node {
                id: row.get("item")?,
                parent: Some(parent.clone()),
                level: 0,
                depth: row.get("depth")?,
                agent: None,
                trigger: None,
                at: row.get("at")?,
            };
            children.entry(parent).or_default().push(node);
        }
        for row in &runs {
            let parent: String = row.get::<Option<String>>("cause")?.unwrap_or_else(|| root.clone());
            let node = Node {
                id: format!("run/{}", row.get::<String>("name")?),
                parent: Some(parent.clone()),
                level: 0,
                depth: row.get("depth")?,
                agent: row.get("agent")?,
                trigger: row.get("kind")?,
                at: row.get("at")?,
            };
            children.entry(parent).or_default().push(node);
        }
        let more = items.len() as i64 == NODES || runs.len() as i64 == NODES;
        let (nodes, cycles) = in_order(&root, children);
        Ok(Tree { root, nodes, cycles: cycles.into_iter().collect(), more })
    }
}

/// The tree from its root, and the cycles of agents on its branches.
fn in_order(root: &str, mut children: BTreeMap<String, Vec<Node>>) -> (Vec<Node>, BTreeSet<String>) {
    let first =
        Node { id: root.to_owned(), parent: None, level: 0, depth: 0, agent: None, trigger: None, at: None };
    let (mut nodes, mut cycles) = (Vec::new(), BTreeSet::new());
    let mut open = vec![(first, Vec::<String>::new())];
    while let Some((node, mut agents)) = open.pop() {
        agents.extend(node.agent.clone());
        if node.agent.is_some() && agents.iter().rev().skip(1).any(|agent| Some(agent) == node.agent.as_ref())
        {
            cycles.extend(chain::cycle(&agents));
        }
        // Removed, so that rows that contradict each other cannot make an endless tree.
        for child in children.remove(&node.id).unwrap_or_default().into_iter().rev() {
            open.push((Node { level: node.level + 1, ..child }, agents.clone()));
        }
        nodes.push(node);
    }
    (nodes, cycles)
}

/// The root of an item or a run. Refuses what does not exist.
async fn root_of(tx: &mut Tx<'_>, id: &str) -> Result<String> {
    let unknown = || {
        Error::new(Code::NotFound, format!("there is no post, message, task or run `{}`", clip(id)))
            .hint("the id is post/CHANNEL/N, message/ID, task/ID or run/NAME")
    };
    let (noun, name) = id.split_once('/').ok_or_else(unknown)?;
    let found = match noun {
        "run" => {
            let sql = "select root from triggered where name = ?1 order by run desc limit 1";
            let rows = tx.query(sql, params![name]).await?;
            if let Some(row) = rows.first() {
                return Ok(row.get::<Option<String>>("root")?.unwrap_or_else(|| id.to_owned()));
            }
            tx.query("select 1 as found from run where name = ?1 limit 1", params![name]).await?
        }
        "post" | "message" | "task" => {
            let rows = tx.query("select root from caused where item = ?1", params![id]).await?;
            if let Some(row) = rows.first() {
                return row.get("root");
            }
            let number = |text: &str| text.parse::<i64>().ok();
            match (noun, name.rsplit_once('/'), name.rsplit_once('-')) {
                ("post", Some((channel, n)), _) => {
                    let sql = "select 1 as found from post where channel = ?1 and n = ?2";
                    tx.query(sql, params![channel, number(n)]).await?
                }
                ("message", ..) => {
                    tx.query("select 1 as found from message where id = ?1", params![number(name)]).await?
                }
                ("task", _, Some((board, n))) => {
                    let sql = "select 1 as found from task where board = ?1 and n = ?2";
                    tx.query(sql, params![board, number(n)]).await?
                }
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    };
    if found.is_empty() { Err(unknown()) } else { Ok(id.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_names_its_cycles() {
        let node = |id: &str, parent: &str, agent: Option<&str>| Node {
            id: id.into(),
            parent: Some(parent.into()),
            level: 0,
            depth: 0,
            agent: agent.map(str::to_owned),
            trigger: None,
            at: None,
        };
        let mut children = BTreeMap::<String, Vec<Node>>::new();
        for node in [
            node("run/1", "post/c/1", Some("a")),
            node("run/2", "post/c/1", Some("c")),
            node("post/c/2", "run/1", None),
            node("run/3", "post/c/2", Some("b")),
            node("post/c/3", "run/3", None),
            node("run/4", "post/c/3", Some("a")),
        ] {
            children.entry(node.parent.clone().unwrap()).or_default().push(node);
        }
        let (nodes, cycles) = in_order("post/c/1", children);
        let shown: Vec<_> =
            nodes.iter().map(|node| format!("{}{}", "  ".repeat(node.level as usize), node.id)).collect();
        assert_eq!(
            shown,
            [
                "post/c/1",
                "  run/1",
                "    post/c/2",
                "      run/3",
                "        post/c/3",
                "          run/4",
                "  run/2"
            ]
        );
        assert_eq!(cycles.into_iter().collect::<Vec<_>>(), ["a → b → a"]);
    }
}
