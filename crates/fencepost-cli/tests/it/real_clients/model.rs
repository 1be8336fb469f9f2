//! A stand-in for the model APIs of both clients, on loopback. It plays scripts of tool calls, and records what the model was shown.
//!
//! The number of tool results that a request contains is the number of the step that answers it. After the last step the answer is a
//! text, which ends the turn.

use crate::sealed::eventually;
use fencepost::sync::lock;
use serde_json::{Value, json};
use std::{
    collections::HashSet,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

/// One answer of the model.
#[derive(Clone)]
pub struct Step {
    act: Act,
    /// The answer is held back until the test opens this gate.
    gate: Option<&'static str>,
}

#[derive(Clone)]
enum Act {
    /// A command in the client's shell.
    Shell(String),
    /// A tool of `fence mcp`.
    Fence(&'static str, Value),
    /// Another tool of the client. Codex groups its tools in namespaces, and some take a text.
    Tool { name: &'static str, namespace: Option<&'static str>, input: Value },
    /// A step that depends on the results so far.
    After(fn(&[String]) -> Step),
    /// The end of the turn.
    Text(&'static str),
}

pub fn shell(command: impl Into<String>) -> Step {
    Act::Shell(command.into()).into()
}

pub fn fence(tool: &'static str, input: Value) -> Step {
    Act::Fence(tool, input).into()
}

pub fn tool(name: &'static str, namespace: Option<&'static str>, input: Value) -> Step {
    Act::Tool { name, namespace, input }.into()
}

pub fn after(results: fn(&[String]) -> Step) -> Step {
    Act::After(results).into()
}

pub fn text(words: &'static str) -> Step {
    Act::Text(words).into()
}

impl From<Act> for Step {
    fn from(act: Act) -> Self {
        Self { act, gate: None }
    }
}

impl Step {
    /// The answer waits until [`Model::open`] names the gate.
    pub fn behind(self, gate: &'static str) -> Self {
        Self { gate: Some(gate), ..self }
    }
}

/// The steps of the conversations with this text in a prompt.
pub type Script = (&'static str, Vec<Step>);

/// A running stand-in. Dropping this value ends it.
pub struct Model {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    scripts: Vec<Script>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    requests: Vec<Request>,
    reached: HashSet<&'static str>,
    open: HashSet<&'static str>,
    is_over: bool,
}

/// One request of a client, with the whole conversation so far.
#[derive(Debug, Clone)]
pub struct Request {
    /// The script that answers it.
    pub script: &'static str,
    /// The texts of the tool results.
    pub results: Vec<String>,
    /// Everything that the model was shown, as JSON.
    pub shown: String,
}

impl Model {
    /// The first script whose text is in a prompt answers a conversation.
    pub fn start(scripts: Vec<Script>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let shared = Arc::new(Shared { scripts, state: Mutex::default(), changed: Condvar::new() });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if lock(&accepting.state).is_over {
                    return;
                }
                let shared = accepting.clone();
                // A client that is killed breaks its connection.
                std::thread::spawn(move || drop(shared.serve(stream)));
            }
        });
        Self { address, shared }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Waits until a conversation is at this gate.
    #[track_caller]
    pub fn reached(&self, gate: &'static str) {
        eventually(&format!("a conversation is at the gate `{gate}`; {}", self.summary()), || {
            lock(&self.shared.state).reached.contains(gate).then_some(())
        });
    }

    pub fn open(&self, gate: &'static str) {
        lock(&self.shared.state).open.insert(gate);
        self.shared.changed.notify_all();
    }

    /// The last request of each conversation of a script, in the order in which they began.
    pub fn requests(&self, script: &str) -> Vec<Request> {
        lock(&self.shared.state).requests.iter().filter(|request| request.script == script).cloned().collect()
    }

    /// The longest conversation of a script.
    #[track_caller]
    pub fn conversation(&self, script: &str) -> Request {
        let longest = self.requests(script).into_iter().max_by_key(|request| request.shown.len());
        longest.unwrap_or_else(|| panic!("no conversation is `{script}`: {}", self.summary()))
    }

    /// The result of a step, counted from 0.
    #[track_caller]
    pub fn result(&self, script: &str, step: usize) -> String {
        let conversation = self.conversation(script);
        let result = conversation.results.get(step).cloned();
        result.unwrap_or_else(|| panic!("step {step} has no result: {:#?}", conversation.results))
    }

    /// The results of all conversations, for the message of a test that fails.
    pub fn summary(&self) -> String {
        let state = lock(&self.shared.state);
        let last = state.requests.last().map(|request| (request.script, &request.results));
        format!("{} requests, the last with {last:#?}", state.requests.len())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        lock(&self.shared.state).is_over = true;
        self.shared.changed.notify_all();
        // The thread that accepts connections looks up.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut stream = stream;
        loop {
            let mut first = String::new();
            if reader.read_line(&mut first)? == 0 {
                return Ok(());
            }
            let mut length = 0;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line)?;
                match line.trim_end().split_once(':') {
                    None => break,
                    Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                        length = value.trim().parse().unwrap_or(0);
                    }
                    Some(_) => {}
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body)?;
            let path = first.split(' ').nth(1).unwrap_or_default();
            let (kind, reply) = self.reply(path.split('?').next().unwrap_or_default(), &body);
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", reply.len());
            stream.write_all(head.as_bytes())?;
            if !first.starts_with("HEAD ") {
                stream.write_all(reply.as_bytes())?;
            }
        }
    }

    fn reply(&self, path: &str, body: &[u8]) -> (&'static str, String) {
        let request: Value = serde_json::from_slice(body).unwrap_or_default();
        match path {
            _ if path.ends_with("/count_tokens") => {
                ("application/json", json!({"input_tokens": 10}).to_string())
            }
            _ if path.ends_with("/v1/messages") => self.anthropic(&request),
            _ if path.ends_with("/responses") => ("text/event-stream", self.openai(&request)),
            _ => ("application/json", json!({"object": "list", "data": [], "models": []}).to_string()),
        }
    }

    /// Records the request, and returns the step that answers it.
    fn step(&self, prompt: &str, request: Request) -> Act {
        let script = self.scripts.iter().find(|(marker, _)| prompt.contains(marker));
        let (marker, steps) = script.map_or(("", &[][..]), |(marker, steps)| (*marker, steps.as_slice()));
        let mut state = lock(&self.state);
        let results = request.results.clone();
        state.requests.push(Request { script: marker, ..request });
        let mut step = steps.get(results.len()).cloned().unwrap_or_else(|| text("DONE"));
        if let Some(gate) = step.gate {
            state.reached.insert(gate);
            let is_shut = |state: &mut State| !state.is_over && !state.open.contains(gate);
            drop(self.changed.wait_timeout_while(state, Duration::from_secs(300), is_shut));
        }
        while let Act::After(make) = step.act {
            step = make(&results);
        }
        step.act
    }

    fn anthropic(&self, request: &Value) -> (&'static str, String) {
        let messages = list(&request["messages"]);
        let parts = || messages.iter().flat_map(|message| list(&message["content"]));
        let results = parts().filter(|part| part["type"] == "tool_result");
        let results: Vec<String> = results.map(|part| words(&part["content"])).collect();
        let tools: Vec<String> = names(&request["tools"]);
        let call = format!("toolu_{:x}_{:02}", fastrand::u64(..), results.len());
        let prompts = messages.iter().filter(|message| message["role"] == "user");
        let prompt: String = prompts.map(|message| words(&message["content"])).collect();
        let shown = json!([request["system"], messages]).to_string();
        // A request without tools asks for a title.
        let act = match tools.is_empty() {
            true => Act::Text("a title"),
            false => self.step(&prompt, Request { script: "", results, shown }),
        };
        let use_tool =
            |name: &str, input: Value| json!({"type": "tool_use", "id": call, "name": name, "input": input});
        let block = match act {
            Act::Shell(command) => use_tool("Bash", json!({"command": command, "description": "step"})),
            // A plugin's server has another prefix.
            Act::Fence(tool, input) => {
                let name = tools.iter().find(|name| name.ends_with(&format!("fence__{tool}")));
                use_tool(name.map_or(tool, String::as_str), input)
            }
            Act::Tool { name, input, .. } => use_tool(name, input),
            Act::Text(text) => json!({"type": "text", "text": text}),
            Act::After(_) => unreachable!("replaced by its step"),
        };
        let is_call = block["type"] == "tool_use";
        let stop = if is_call { "tool_use" } else { "end_turn" };
        let usage = json!({"input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0});
        let mut message = json!({
            "id": format!("msg_{:x}", fastrand::u64(..)), "type": "message", "role": "assistant", "model": request["model"],
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage,
        });
        if request["stream"] != true {
            message["content"] = json!([block]);
            message["stop_reason"] = stop.into();
            return ("application/json", message.to_string());
        }
        let (mut empty, delta) = (
            block.clone(),
            match is_call {
                true => json!({"type": "input_json_delta", "partial_json": block["input"].to_string()}),
                false => json!({"type": "text_delta", "text": block["text"]}),
            },
        );
        match is_call {
            true => empty["input"] = json!({}),
            false => empty["text"] = "".into(),
        }
        (
            "text/event-stream",
            events(&[
                json!({"type": "message_start", "message": message}),
                json!({"type": "content_block_start", "index": 0, "content_block": empty}),
                json!({"type": "content_block_delta", "index": 0, "delta": delta}),
                json!({"type": "content_block_stop", "index": 0}),
                json!({"type": "message_delta", "delta": {"stop_reason": stop, "stop_sequence": null}, "usage": {"output_tokens": 5}}),
                json!({"type": "message_stop"}),
            ]),
        )
    }

    fn openai(&self, request: &Value) -> String {
        let items = list(&request["input"]);
        let is_output = |item: &&Value| item["type"].as_str().is_some_and(|kind| kind.ends_with("_output"));
        let results: Vec<String> =
            items.iter().filter(is_output).map(|item| words(&item["output"])).collect();
        let tools = names(&request["tools"]);
        let call = format!("call_{:x}_{:02}", fastrand::u64(..), results.len());
        let prompts = items.iter().filter(|item| item["role"] == "user");
        let prompt: String = prompts.map(|item| words(&item["content"])).collect();
        let shown = json!([request["instructions"], items]).to_string();
        let act = match tools.is_empty() {
            true => Act::Text("a title"),
            false => self.step(&prompt, Request { script: "", results, shown }),
        };
        let use_tool = |name: &str, namespace: Option<&str>, input: Value| {
            if let Value::String(text) = input {
                return json!({ "type": "custom_tool_call", "id": format!("ctc_{call}"), "call_id": call, "name": name, "input": text });
            }
            let mut item = json!({
                "type": "function_call", "id": format!("fc_{call}"), "call_id": call, "name": name, "arguments": input.to_string(),
            });
            if let Some(namespace) = namespace {
                item["namespace"] = namespace.into();
            }
            item
        };
        let item = match act {
            Act::Shell(command) => use_tool("exec_command", None, json!({"cmd": command})),
            Act::Fence(tool, input) => use_tool(tool, Some("mcp__fence"), input),
            Act::Tool { name, namespace, input } => use_tool(name, namespace, input),
            Act::Text(text) => json!({
                "type": "message", "role": "assistant", "id": format!("msg_{call}"), "content": [{"type": "output_text", "text": text}],
            }),
            Act::After(_) => unreachable!("replaced by its step"),
        };
        let id = format!("resp_{call}");
        let usage = json!({
            "input_tokens": 10, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 15,
        });
        events(&[
            json!({"type": "response.created", "response": {"id": id}}),
            json!({"type": "response.output_item.done", "item": item}),
            json!({"type": "response.completed", "response": {"id": id, "usage": usage}}),
        ])
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn names(tools: &Value) -> Vec<String> {
    let name = |tool: &Value| tool["name"].as_str().or(tool["type"].as_str()).map(str::to_owned);
    list(tools).iter().filter_map(name).collect()
}

/// The text of a content: a string, or blocks with texts.
fn words(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks
            .iter()
            .map(|block| block["text"].as_str().unwrap_or_default())
            .collect::<Vec<_>>()
            .join("\n"),
        other => other.to_string(),
    }
}

fn events(events: &[Value]) -> String {
    let event =
        |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default());
    events.iter().map(event).collect()
}
