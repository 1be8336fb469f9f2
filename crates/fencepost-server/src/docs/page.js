// The page works without this script. The script puts the server's own address into the commands, lets them be copied, and
// searches ops.
const lines = [...document.querySelectorAll(".copy pre")];
for (const pre of lines) {
  pre.textContent = pre.textContent.replace("http://127.0.0.1:7373", location.origin);
  const button = document.createElement("button");
  button.textContent = "copy";
  button.onclick = async () => {
    await navigator.clipboard.writeText(pre.textContent);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  };
  // Browsers offer the clipboard only to secure pages and to pages of this machine.
  if (navigator.clipboard) pre.parentElement.append(button);
}
const key = document.querySelector("label input");
key.parentElement.hidden = false;
key.onchange = () => {
  const header = ' -H "Authorization: Bearer $FENCE_KEY"';
  for (const pre of lines) {
    const line = pre.textContent.replace(header, "");
    pre.textContent = key.checked ? line.replace("curl -s", "curl -s" + header) : line;
  }
};
const find = document.querySelector("[type=search]");
find.hidden = false;
find.oninput = () => {
  const words = find.value.toLowerCase().split(/\s+/);
  for (const op of document.querySelectorAll("details")) {
    const text = op.querySelector("summary").textContent.toLowerCase();
    op.hidden = !words.every((word) => text.includes(word));
  }
  for (const noun of document.querySelectorAll("section")) {
    noun.hidden = !noun.querySelector("details:not([hidden])");
  }
};
const open = () => { const op = document.getElementById(location.hash.slice(1)); if (op) op.open = true; };
addEventListener("hashchange", open);
open();
