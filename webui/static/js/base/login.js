/* The login form: sends the password and shows why a login failed. */
(function () {
  "use strict";
  const t = window.timbre;
  const WRONG = "Wrong name or password. Try again.";
  const AWAY = "The server is not responding. Check that it is running.";
  const form = document.getElementById("login-form");
  if (!form) return;
  const refused = document.getElementById("login-refused"), button = form.querySelector("button");
  try {
    const isDark = localStorage.getItem("timbre-dark") || (matchMedia("(prefers-color-scheme: dark)").matches ? "1" : "0");
    document.body.classList.toggle("dark", isDark === "1");
  } catch (error) { /* private windows may refuse storage */ }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    const problem = await send();
    button.disabled = false;
    if (!problem) return location.reload();
    refused.hidden = false;
    t.setText(refused, problem);
    form.elements.password.select();
  });

  async function send() {
    try {
      const answer = await fetch("login", { method: "POST", body: new URLSearchParams(new FormData(form)) });
      if (answer.ok) return "";
      return answer.status === 429 ? (await answer.json()).error : WRONG;
    } catch (error) {
      return AWAY;
    }
  }
})();
