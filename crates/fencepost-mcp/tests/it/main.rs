//! The tools on a fleet in this process, called by a client of `rmcp` in this process.

mod client;
mod layers;
mod only_the_list;
mod protocol;
mod tools;
mod untrusted_text;
