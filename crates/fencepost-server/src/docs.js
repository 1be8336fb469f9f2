// Without this the page says the same; with it, lines can be copied and ops be found.
for (const pre of document.querySelectorAll(".copy pre")) {
  const button = document.createElement("button");
  button.textContent = "copy";
  button.onclick = async () => {
    const text = pre.textContent.replaceAll("http://127.0.0.1:7373", location.origin);
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  };
  pre.parentElement.append(button);
}
const find = document.querySelector("input");
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
