//! `fence` as a person or an agent runs it: real processes in a sealed environment, on both databases.

mod commands;
mod crash;
mod doctor;
mod edges;
mod history;
mod import;
mod keeper;
mod line;
mod mail;
mod mail_crash;
mod mail_work;
mod processes;
mod readme;
mod remote;
mod sealed;
mod serve;
mod settings;
mod supervise;
mod terminal;
mod three_tabs;
mod verbs;
mod waiting;
mod whose;
