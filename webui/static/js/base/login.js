/* The login form: sends the password and shows why a login failed. */
import { recall } from "./storage.js";
import { setText } from "./translations.js";

const WRONG = "Wrong name or password. Try again.";
const AWAY = "The server is not responding. Check that it is running.";

/** Let the login form send its fields, if this is the login page. */
export function startLogin() {
  const form = document.getElementById("login-form");
  if (!(form instanceof HTMLFormElement)) return;
  const refused = /** @type {HTMLElement} */ (document.getElementById("login-refused"));
  const send = /** @type {HTMLButtonElement} */ (form.querySelector("button"));
  const password = /** @type {HTMLInputElement} */ (form.elements.namedItem("password"));
  const isDark = recall("timbre-dark") || (matchMedia("(prefers-color-scheme: dark)").matches ? "1" : "0");
  document.body.classList.toggle("dark", isDark === "1");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    const problem = await logIn(form);
    send.disabled = false;
    if (!problem) return location.reload();
    refused.hidden = false;
    setText(refused, problem);
    password.select();
  });
}

/** Send the form; returns why it was refused. @param {HTMLFormElement} form */
async function logIn(form) {
  const fields = [...new FormData(form)].map(([name, value]) => [name, String(value)]);
  try {
    const answer = await fetch("login", { method: "POST", body: new URLSearchParams(fields) });
    if (answer.ok) return "";
    return answer.status === 429 ? String((await answer.json()).error) : WRONG;
  } catch {
    return AWAY;
  }
}
