//! The real Claude Code and Codex against a scripted model: `make agents`.
//!
//! The assertions look at three places: at the conversation that the model was shown, at the fleet, and at the remote repository.

mod guard;
mod hook_trust;
mod model;
mod plugin;
mod sandbox;
mod sessions;
mod subagents;
mod workers;
mod world;

/// Tests for both clients. Each gets the client and its program.
#[macro_export]
macro_rules! with_each_client {
    ($($(#[$of:meta])* fn $name:ident($client:ident, $program:ident) $body:block)*) => {
        $($(#[$of])* fn $name($client: super::world::Client, $program: std::path::PathBuf) $body)*
        mod claude { $($crate::with_client!(Claude, $name);)* }
        mod codex { $($crate::with_client!(Codex, $name);)* }
    };
}

#[macro_export]
macro_rules! with_client {
    ($client:ident, $name:ident) => {
        #[test]
        #[ignore = "drives a real client: make agents"]
        fn $name() {
            use $crate::real_clients::world::Client::$client;
            if let Some(program) = $client.program(concat!(module_path!(), "::", stringify!($name))) {
                super::$name($client, program);
            }
        }
    };
}
