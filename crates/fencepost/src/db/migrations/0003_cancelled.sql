-- A board's cancelled tasks, for whoever waits for the board. Nothing is written to it on the way to completion.
create index task_cancelled on task(board) where status = 'cancelled';
