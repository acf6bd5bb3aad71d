"""Train a policy by PPO in one file: `python -m vecenv.examples.ppo`, or `--env ALE/Pong-v5` for a longer run.

    Collector -- (T, N) transitions, values, log-probabilities --> advantages -- minibatches --> Agent -- next batch ...

The program needs torch, `--plot FILE.png` needs matplotlib, the progress bar needs rich. Envs with images get the usual
Atari wrappers and a convolutional network. The defaults depend on the env; `SETTINGS` has both sets.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from vecenv.cli.options import count, natural
from vecenv.collection import Collector, Transitions
from vecenv.envs.gym_registry import make_env
from vecenv.errors import require
from vecenv.evaluation import evaluate
from vecenv.vector import VectorEnv

__all__ = ["Trained", "main", "train"]

torch: Any = require("torch", "torch")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Parameters of the algorithm, named as in the paper (Schulman et al. 2017)."""

    target: float  # mean return of the last 100 episodes that ends the training
    max_steps: int
    num_envs: int = 8
    rollout_steps: int = 64  # T, of each env
    num_epochs: int = 10
    num_minibatches: int = 4
    learning_rate: float = 1e-3
    gamma: float = 0.98
    gae_lambda: float = 0.9
    clip: float = 0.2
    entropy_weight: float = 0.0
    value_weight: float = 0.5
    max_grad_norm: float = 0.5


#: By kind of observation: vectors, such as CartPole's, and images, such as Pong's.
SETTINGS = {
    "vector": Settings(target=475.0, max_steps=400_000),
    "image": Settings(
        target=18.0,
        max_steps=10_000_000,
        rollout_steps=128,
        num_epochs=4,
        learning_rate=2.5e-4,
        gamma=0.99,
        gae_lambda=0.95,
        clip=0.1,
        entropy_weight=0.01,
    ),
}


def make_training_env(env_name: str) -> Any:
    """Return an env; one of the Atari games with frames of 84 x 84 pixels, the last four as one observation."""
    if not env_name.startswith("ALE/"):
        return make_env(env_name)
    env = gymnasium.wrappers.AtariPreprocessing(make_env(env_name, frameskip=1), noop_max=30)
    return gymnasium.wrappers.FrameStackObservation(env, 4)


class Agent(torch.nn.Module):  # type: ignore[misc]
    """Networks of the policy and of the value function; images share one convolutional network.

    It is a policy for `Collector`: it returns actions with the columns `log_prob` and `value`, and `bootstrap` returns
    values of observations that end a column of the batch.
    """

    def __init__(self, obs_shape: Sequence[int], num_actions: int) -> None:
        super().__init__()
        nn = torch.nn
        self.is_image = len(obs_shape) == 3
        if self.is_image:
            self.body = nn.Sequential(
                *(layer(nn.Conv2d(obs_shape[0], 32, 8, 4)), nn.ReLU(), layer(nn.Conv2d(32, 64, 4, 2)), nn.ReLU()),
                *(layer(nn.Conv2d(64, 64, 3, 1)), nn.ReLU(), nn.Flatten(), layer(nn.Linear(3136, 512)), nn.ReLU()),
            )
            self.actor, self.critic = layer(nn.Linear(512, num_actions), 0.01), layer(nn.Linear(512, 1), 1.0)
        else:
            self.body = nn.Identity()
            self.actor, self.critic = (self.make_head(obs_shape[0], size) for size in (num_actions, 1))

    @staticmethod
    def make_head(num_inputs: int, num_outputs: int) -> Any:
        """Return a network with two hidden layers."""
        nn = torch.nn
        hidden = layer(nn.Linear(num_inputs, 64)), nn.Tanh(), layer(nn.Linear(64, 64)), nn.Tanh()
        return nn.Sequential(*hidden, layer(nn.Linear(64, num_outputs), 0.01 if num_outputs > 1 else 1.0))

    def distribution_and_value(self, obs: Any) -> tuple[Any, Any]:
        """Return the distribution of actions, and values (B,)."""
        features = self.body(obs.float() / 255.0 if self.is_image else obs)
        return torch.distributions.Categorical(logits=self.actor(features)), self.critic(features).flatten()

    def forward(self, obs: Any) -> Any:
        """Draw actions; `Collector` calls this with tensors and without gradients."""
        distribution, value = self.distribution_and_value(obs)
        actions = distribution.sample()
        return actions, {"log_prob": distribution.log_prob(actions), "value": value}

    def bootstrap(self, obs: Any) -> Any:
        """Return values (B,) for `Transitions.bootstrap`."""
        return self.distribution_and_value(obs)[1]

    def best_actions(self, obs: Any) -> Any:
        """Return the most likely actions, for evaluation."""
        return self.distribution_and_value(obs)[0].probs.argmax(1)


def layer(module: Any, gain: float = 2**0.5) -> Any:
    """Return a layer with orthogonal weights and without bias at the beginning."""
    torch.nn.init.orthogonal_(module.weight, gain)
    torch.nn.init.zeros_(module.bias)
    return module


def advantages_of(batch: Transitions, settings: Settings) -> Any:
    """Return generalised advantage estimates, float32 (T, N)."""
    values, has_end = batch.extras["value"], batch.terminated | batch.truncated
    advantages = np.zeros_like(values)
    later = np.zeros(values.shape[1], np.float32)
    next_values = batch.bootstrap  # values of rows whose successor does not continue them; 0 in the others
    assert next_values is not None, "the agent has a method `bootstrap`"
    for t in reversed(range(len(values))):
        following = next_values[t]
        if t + 1 < len(values):
            following = np.where(has_end[t], following, values[t + 1])
        delta = batch.rewards[t] + settings.gamma * following - values[t]
        later = (delta + settings.gamma * settings.gae_lambda * ~has_end[t] * later).astype(np.float32)
        advantages[t] = later
    return advantages


def learn(agent: Agent, optimizer: Any, batch: Transitions, settings: Settings) -> None:
    """Improve the agent by the clipped objective of PPO on one batch."""
    advantages = advantages_of(batch, settings)
    columns = batch.obs, batch.actions, batch.extras["log_prob"], advantages, advantages + batch.extras["value"]
    device = next(agent.parameters()).device
    obs, actions, old_log_probs, advantages, returns = (
        torch.from_numpy(column).flatten(0, 1).to(device) for column in columns
    )
    for _ in range(settings.num_epochs):
        for rows in torch.randperm(len(obs)).chunk(settings.num_minibatches):
            distribution, values = agent.distribution_and_value(obs[rows])
            ratio = (distribution.log_prob(actions[rows]) - old_log_probs[rows]).exp()
            gain = advantages[rows]
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            clipped = ratio.clamp(1 - settings.clip, 1 + settings.clip)
            policy_loss = -torch.min(gain * ratio, gain * clipped).mean()
            value_loss = (returns[rows] - values).square().mean()
            entropy = distribution.entropy().mean()
            loss = policy_loss + settings.value_weight * value_loss - settings.entropy_weight * entropy
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(agent.parameters(), settings.max_grad_norm)
            optimizer.step()


class Trained(NamedTuple):
    """The result of `train`: env steps, seconds, and the steps and return of each training episode."""

    agent: Agent
    steps: int
    seconds: float
    history: list[tuple[int, float]]


class Record:
    """The batches of a training so far; `bar` shows them.

    Attributes:
        steps: env steps of all batches.
        history: the steps and the return of each episode.
    """

    def __init__(self, settings: Settings, bar: Any) -> None:
        self.steps = 0
        self.history: list[tuple[int, float]] = []
        self._last: deque[float] = deque(maxlen=100)
        self._settings, self._bar = settings, bar
        self._start = time.perf_counter()

    def add(self, batch: Transitions) -> bool:
        """Count a batch; return whether the mean of the last 100 returns is the target, or all steps are made."""
        settings, last, returns = self._settings, self._last, batch.episode_returns.tolist()
        self.steps += len(batch)
        self.history += [(self.steps, episode_return) for episode_return in returns]
        last.extend(returns)
        mean = float(np.mean(last)) if last else float("nan")
        self._bar.update(0, completed=self.steps, description=f"mean return {mean:7.1f}")
        return self.steps >= settings.max_steps or (len(last) == last.maxlen and mean >= settings.target)

    def finish(self, agent: Agent) -> Trained:
        """Return the result of the training."""
        return Trained(agent, self.steps, time.perf_counter() - self._start, self.history)


def train(env_name: str, settings: Settings, seed: int, show_progress: bool = False) -> Trained:
    """Train until the mean return of the last 100 episodes is the target, or for `max_steps` env steps."""
    torch.manual_seed(seed)
    env_fns = [functools.partial(make_training_env, env_name)] * settings.num_envs
    with VectorEnv(env_fns, infos="none") as envs, progress_bar(settings.max_steps, show_progress) as bar:
        observations, actions = envs.single_observation_space, envs.single_action_space
        assert observations.shape is not None and isinstance(actions, gymnasium.spaces.Discrete)
        agent = Agent(observations.shape, int(actions.n))
        optimizer = torch.optim.Adam(agent.parameters(), settings.learning_rate, eps=1e-5)
        batch_steps = settings.num_envs * settings.rollout_steps
        record = Record(settings, bar)
        for batch in Collector(envs, agent, batch_steps=batch_steps, time_major=True, seed=seed):
            if record.add(batch):
                break
            learn(agent, optimizer, batch, settings)
            optimizer.param_groups[0]["lr"] = settings.learning_rate * max(0.1, 1 - record.steps / settings.max_steps)
        return record.finish(agent)


def progress_bar(total: int, is_shown: bool) -> Any:
    """Return a bar of rich with one task, on the standard error."""
    rich, console = require("rich.progress", "cli"), require("rich.console", "cli")
    columns = rich.Progress.get_default_columns()
    bar = rich.Progress(*columns, console=console.Console(stderr=True), disable=not is_shown)
    bar.add_task("mean return", total=total)
    return bar


def save_plot(history: Sequence[tuple[int, float]], env_name: str, path: Path) -> None:
    """Draw the return of each episode, and the mean of the last 100, over env steps."""
    figure = require("matplotlib.figure", "cli").Figure(figsize=(8, 4))
    axes = figure.subplots()
    steps, returns = np.array(history).T
    means = [returns[max(0, end - 100) : end].mean() for end in range(1, len(returns) + 1)]
    axes.plot(steps, returns, ".", markersize=2, alpha=0.4, label="episode")
    axes.plot(steps, means, label="mean of 100 episodes")
    axes.set(xlabel="env steps", ylabel="return", title=f"PPO on {env_name}")
    axes.legend()
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> None:
    """Train, evaluate, and print the results."""
    options = _parse(argv)
    torch.set_num_threads(options.threads)
    settings = SETTINGS["image" if options.env.startswith("ALE/") else "vector"]
    given = {"target": options.target, "max_steps": options.steps, "num_envs": options.envs}
    settings = dataclasses.replace(settings, **{name: value for name, value in given.items() if value is not None})
    trained = train(options.env, settings, options.seed, show_progress=True)
    last = [episode_return for _, episode_return in trained.history[-100:]]
    print(
        f"{options.env}: mean return {np.mean(last) if last else float('nan'):.1f} of the last {len(last)} episodes "
        f"after {trained.steps} steps, {trained.seconds:.1f} s"
    )
    seeds = range(1000 + options.seed, 1000 + options.seed + options.eval_episodes)
    env_fn = functools.partial(make_training_env, options.env)
    result = evaluate(env_fn, trained.agent.best_actions, seeds=seeds)
    print(f"evaluation: mean return {result.mean:.1f} of {len(seeds)} episodes with the most likely actions")
    if options.plot is not None and trained.history:
        save_plot(trained.history, options.env, options.plot)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a policy by PPO, then evaluate it.")
    parser.add_argument("--env", default="CartPole-v1", help="registered env with discrete actions (%(default)s)")
    parser.add_argument("--envs", type=count, help="envs that run at once (default: 8)")
    parser.add_argument("--steps", type=count, help="env steps at most (default: 400,000; Atari: 10 million)")
    parser.add_argument("--target", type=float, help="mean return to stop at (default: 475; Atari: 18)")
    parser.add_argument("--eval-episodes", type=count, default=20, help="episodes at the end (default: %(default)s)")
    parser.add_argument("--seed", type=natural, default=0, help="of the envs and of torch (default: %(default)s)")
    parser.add_argument("--threads", type=count, default=1, help="of torch (default: %(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the returns of the training episodes")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
