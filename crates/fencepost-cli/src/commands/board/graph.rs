//! The dependencies of a board, drawn as a tree.
//!
//! Each task appears once: below the deepest of its dependencies, which will be completed last. The other dependencies are named
//! beside it.

use crate::output::{Terminal, table::CellLine, terminal::state};
use anstyle::Style;
use fencepost::{board::show::Edge, task::Task};
use std::collections::HashMap;

pub fn draw(tasks: &[Task], edges: &[Edge], terminal: &Terminal) -> String {
    let graph = Graph::new(tasks, edges);
    let mut lines = Vec::new();
    for root in graph.children(None) {
        graph.branch(root, "", "", terminal, &mut lines);
    }
    lines.join("\n")
}

struct Graph<'a> {
    tasks: &'a [Task],
    after: HashMap<&'a str, Vec<&'a str>>,
    /// By task: the task that it is drawn below.
    parent: HashMap<&'a str, &'a str>,
}

impl<'a> Graph<'a> {
    fn new(tasks: &'a [Task], edges: &'a [Edge]) -> Self {
        let mut after: HashMap<&str, Vec<&str>> = HashMap::new();
        for edge in edges {
            after.entry(&edge.task).or_default().push(&edge.after);
        }
        let index: HashMap<&str, usize> =
            tasks.iter().enumerate().map(|(at, task)| (task.id.as_str(), at)).collect();
        let depths = depths(tasks, &after);
        let parent = tasks.iter().filter_map(|task| {
            let shown = after.get(task.id.as_str())?.iter().filter(|id| index.contains_key(*id));
            let last = shown.max_by_key(|id| (depths[**id], index[**id]))?;
            Some((task.id.as_str(), *last))
        });
        Self { tasks, parent: parent.collect(), after }
    }

    fn children(&self, of: Option<&str>) -> Vec<&'a Task> {
        self.tasks.iter().filter(|task| self.parent.get(task.id.as_str()).copied() == of).collect()
    }

    /// One task, and everything below it.
    fn branch(&self, task: &Task, lead: &str, below: &str, terminal: &Terminal, lines: &mut Vec<String>) {
        let status = task.state().as_str();
        let parent = self.parent.get(task.id.as_str());
        let others = self.after.get(task.id.as_str()).into_iter().flatten().filter(|id| Some(*id) != parent);
        let others: Vec<&str> = others.copied().collect();
        let also = match (others.is_empty(), parent) {
            (true, _) => String::new(),
            (false, None) => format!("  (after {})", others.join(", ")),
            (false, Some(_)) => format!("  (also after {})", others.join(", ")),
        };
        // The title is cut first, then the other dependencies.
        let title = terminal.fit(&task.title, &format!("{lead}{}  {status}  {also}", task.id));
        let mut cells = CellLine::new(terminal);
        cells.prefix(lead, Style::new().dimmed());
        cells.cell(&task.id, 0, Style::new());
        cells.cell(status, 0, state(status));
        cells.cell(&title, 0, Style::new());
        cells.cell(also.trim_start(), 0, Style::new().dimmed());
        lines.push(cells.finish());
        let children = self.children(Some(&task.id));
        let (fork, last, line) = terminal.branches();
        for (at, child) in children.iter().enumerate() {
            let is_last = at + 1 == children.len();
            let lead = format!("{below}{}", if is_last { last } else { fork });
            let under = format!("{below}{}", if is_last { "   " } else { line });
            self.branch(child, &lead, &under, terminal, lines);
        }
    }
}

/// The length of the longest chain of dependencies of each task. A task may depend on one that was added later, so this repeats
/// until nothing changes. There are no cycles.
fn depths<'a>(tasks: &'a [Task], after: &HashMap<&str, Vec<&str>>) -> HashMap<&'a str, usize> {
    let mut depths: HashMap<&str, usize> = tasks.iter().map(|task| (task.id.as_str(), 0)).collect();
    loop {
        let mut changed = false;
        for task in tasks {
            let above = after.get(task.id.as_str()).into_iter().flatten();
            let depth = above.filter_map(|id| depths.get(id)).map(|depth| depth + 1).max().unwrap_or(0);
            changed |= depths.insert(&task.id, depth) != Some(depth);
        }
        if !changed {
            return depths;
        }
    }
}
