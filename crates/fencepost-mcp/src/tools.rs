//! The tools. A tool is an op or a small family of ops; its file has the definition that clients see and the translation.

mod claim;
mod finish;
mod guard;
mod look;
mod plan;
mod poll;
mod report;
mod say;
mod settle;

use crate::{
    arguments::{self, Arguments, Field, Kind},
    session::Session,
};
use fencepost::{BoxFuture, Result};
use rmcp::model::{self, ToolAnnotations};
use serde_json::{Map, Value};

/// One tool.
#[derive(Clone, Copy)]
pub struct Tool {
    pub name: &'static str,
    /// When to use it. It is all that an agent knows of the tool.
    about: &'static str,
    fields: &'static [Field],
    required: &'static [&'static str],
    effect: Effect,
    run: Run,
}

type Run = for<'s> fn(&'s Session<'_>, Arguments) -> BoxFuture<'s, Result<Value>>;

/// The effect of a call, as its annotations state it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Reads,
    /// The same call again changes nothing more.
    Idempotent,
    Writes,
}

/// An argument of every tool. A client's subagents share its session, and tell their work apart by it.
const RUN: Field =
    Field::new("run", Kind::Text, "Your own run name, if you are a subagent; the same in all your calls");

const ALL: [Tool; 9] = [
    look::TOOL,
    claim::TOOL,
    report::TOOL,
    guard::TOOL,
    finish::TOOL,
    plan::TOOL,
    poll::TOOL,
    settle::TOOL,
    say::TOOL,
];

pub fn find(name: &str) -> Option<Tool> {
    ALL.into_iter().find(|tool| tool.name == name)
}

/// The tools as clients see them.
pub fn list() -> Vec<model::Tool> {
    ALL.iter().map(Tool::definition).collect()
}

impl Tool {
    fn all_fields(&self) -> Vec<Field> {
        let own = if self.fields.iter().any(|field| field.name == RUN.name) { None } else { Some(RUN) };
        self.fields.iter().copied().chain(own).collect()
    }

    pub fn definition(&self) -> model::Tool {
        let schema = arguments::schema(&self.all_fields(), self.required);
        let annotations = match self.effect {
            Effect::Reads => ToolAnnotations::new().read_only(true),
            Effect::Idempotent => ToolAnnotations::new().destructive(false).idempotent(true),
            Effect::Writes => ToolAnnotations::new().destructive(false),
        };
        model::Tool::new(self.name, self.about, schema).with_annotations(annotations.open_world(false))
    }

    /// Checks the arguments of a call.
    pub fn read(&self, given: Map<String, Value>) -> Result<Arguments> {
        Arguments::read(given, self.all_fields(), self.required)
    }

    pub fn run<'s>(&self, session: &'s Session<'_>, args: Arguments) -> BoxFuture<'s, Result<Value>> {
        (self.run)(session, args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_short() {
        let result = model::ListToolsResult::with_all_items(list());
        let wire = serde_json::to_string(&result).expect("JSON");
        println!("tools/list has {} bytes", wire.len());
        assert!(list().len() <= 9);
        assert!(wire.len() < 8 * 1024, "{} bytes", wire.len());
    }

    #[test]
    fn required_arguments_exist_and_every_description_is_one_line() {
        for tool in ALL {
            let fields = tool.all_fields();
            assert!(
                tool.required.iter().all(|name| fields.iter().any(|field| field.name == *name)),
                "{}",
                tool.name
            );
            assert!(!tool.about.contains('\n') && tool.about.ends_with('.'), "{}", tool.name);
            assert_eq!(fields.iter().filter(|field| field.name == "run").count(), 1);
        }
    }
}
