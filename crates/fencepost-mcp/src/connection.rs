//! One connection on standard input and output, and the replies that did not reach its client.

use fencepost::sync::lock;
use rmcp::{
    RoleServer, ServiceExt,
    model::JsonRpcMessage,
    service::{QuitReason, RxJsonRpcMessage, ServerInitializeError, Service, TxJsonRpcMessage},
    transport::{Transport, async_rw::AsyncRwTransport},
};
use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
};

/// The longest message. The longest texts have 1 MiB, and JSON makes a text at most six times as long.
const MESSAGE_MAX: usize = 8 * 1024 * 1024;

/// A connection: is it closed, and which claims were made by calls that have no reply yet?
#[derive(Debug)]
pub struct Connection {
    closed: watch::Sender<bool>,
    /// Tokens, by the id of the request.
    unanswered: Mutex<HashMap<String, Vec<String>>>,
}

impl Default for Connection {
    fn default() -> Self {
        Self { closed: watch::Sender::new(false), unanswered: Mutex::default() }
    }
}

impl Connection {
    /// Returns once the client sends nothing more: it closed the connection, or is gone.
    pub async fn closed(&self) {
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// This request claimed these tokens. They are its client's when the reply is written.
    pub fn claimed(&self, request: &str, tokens: impl IntoIterator<Item = String>) {
        lock(&self.unanswered).entry(request.to_owned()).or_default().extend(tokens);
    }

    /// The claims of calls whose reply could not be written, to be given back.
    pub fn undelivered(&self) -> Vec<String> {
        lock(&self.unanswered).drain().flat_map(|(_, tokens)| tokens).collect()
    }

    /// Serves the connection until its client closes it. An error if the client does not speak the protocol.
    pub async fn serve<S: Service<RoleServer>>(
        self: Arc<Self>,
        service: S,
        read: impl AsyncRead + Send + Unpin + 'static,
        write: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(), String> {
        let lines = AsyncRwTransport::new_server(read, write).with_max_line_length(MESSAGE_MAX);
        let transport = Watched { connection: self, lines };
        match service.serve(transport).await {
            Ok(running) => match running.waiting().await {
                Ok(QuitReason::JoinError(e)) | Err(e) => Err(e.to_string()),
                Ok(_) => Ok(()),
            },
            Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
            Err(e) => Err(e.to_string()),
        }
    }
}

/// A transport that notes what reached the client.
struct Watched<R: AsyncRead, W: AsyncWrite> {
    connection: Arc<Connection>,
    lines: AsyncRwTransport<RoleServer, R, W>,
}

impl<R, W> Transport<RoleServer> for Watched<R, W>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let answered = match &item {
            JsonRpcMessage::Response(response) => Some(response.id.to_string()),
            _ => None,
        };
        let (send, connection) = (self.lines.send(item), self.connection.clone());
        async move {
            send.await?;
            if let Some(id) = answered {
                lock(&connection.unanswered).remove(&id);
            }
            Ok(())
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        let received = self.lines.receive().await;
        if received.is_none() {
            self.connection.closed.send_replace(true);
        }
        received
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        self.lines.close().await
    }
}
