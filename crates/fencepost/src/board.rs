//! Boards: groups of tasks. A board is made by its first task.

use crate::op::verbs;

verbs![list::List, show::Show];
