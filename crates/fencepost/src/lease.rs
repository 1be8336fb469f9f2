pub(crate) mod overdue;
