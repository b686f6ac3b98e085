"""Every setting, typed. Values and their sources stand in the YAML files beside this module.

The defaults here are neutral; a profile (`conf/profile/*.yaml`) gives the numbers of a run. Names
are RAGEN's and verl's where they have one (`env_groups`, `group_size`, `max_turns`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class EnvSection:
    """The world, and how an episode in it is played."""

    id: str = "frozenlake"
    """A registered id or `module:Class`."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Constructor arguments that differ from the id's own."""
    max_turns: int = 10
    max_actions_per_turn: int = 1
    max_actions: int = 10
    """Action budget of an episode."""
    action_separator: str = "||"


@dataclass
class PromptSection:
    """What the model is shown and what it is asked to write."""

    response_format: str = "world_model"
    """world_model | plain | answer_only"""
    style: str = "full"
    """full (rules, format, budget) | state_only (the bare state)"""
    history: str = "full"
    """full | last_k | single_turn"""
    last_k: int = 3
    """Earlier turns shown when `history: last_k`."""
    state_shown: str = "grid_coords"
    """State format of the prompt: grid | coords | grid_coords"""
    observation: str = "grid_coords"
    """State format that `<observation>` must hold."""
    prediction: str = "grid_coords"
    """State format that `<prediction>` must hold."""
    prediction_steps: str = "last"
    """last (the state after all actions of an answer) | each (one state after each action; the last
    stands for those that the end of the game leaves over, too)"""
    random_coords: bool = False
    """Draw the coordinates in every shown, observed and predicted state at random at each step."""
    lenient: bool = True
    """Play the readable actions of a malformed answer (it is counted malformed all the same)."""


@dataclass
class SamplingSection:
    """How answers are drawn in every stage; evaluation has its own temperature."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 400
    max_model_len: int = 3600
    """Prompt and answer together; a prompt that leaves no room ends the episode (CONTEXT_FULL)."""


@dataclass
class GenerationSection:
    """Who writes answers in self-play and evaluation, and how. PPO's trainers bring their own."""

    engine: str = "auto"
    """auto | hf | vllm. auto is vLLM where it is installed, a GPU is seen and the model isn't built
    from scratch here, else hf (`steps.policies.engines`)."""
    gpu_memory_utilization: float = 0.9
    """vLLM's share of a GPU's memory, weights and KV cache, while it plays."""
    tensor_parallel_size: int = 1
    """GPUs that share one copy of the model in vLLM."""
    enforce_eager: bool = False
    """Leave out vLLM's compilation and CUDA graphs: a faster start, slower answers."""
    constrained: bool = False
    """Force well-formed answers in self-play: tags in order, legal actions, free text between.
    PPO and evaluation measure what the model does by itself and never force it."""
    logprobs: bool = False
    """Keep log-probabilities of sampled tokens with the episodes that vLLM plays, which takes it a
    fifth longer; hf's always have them. PPO asks for its own."""
    max_span_chars: int = 0
    """Most characters of each free span of a forced answer; 0 leaves it to `max_new_tokens`."""
    max_batch: int = 1024
    """Most answers that are written at once; lower it where the KV cache of hf doesn't fit. With
    vLLM up to three times as many episodes run at once, where its KV cache holds them."""


@dataclass
class ModelSection:
    """The model. `path` is a Hugging Face directory or hub name; empty builds one from scratch."""

    name: str = "tiny"
    path: str = ""
    revision: str = ""
    """Branch, tag or commit of a hub name; empty is its main branch."""
    trust_remote_code: bool = False
    from_scratch: bool = True
    """A model from scratch can't speak yet: its first self-play round is played at random."""
    architecture: str = "gpt2"
    """gpt2 | llama: of a model from scratch. verl trains the second alone."""
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    ffn_size: int = 128
    max_positions: int = 256
    init_seed: int = 0
    """Added to the run's seed."""
    init_std: float = 0.0
    """Deviation of the initial weights; 0 is hidden_size ** -0.5."""
    dtype: str = "float32"
    """Of a model that only plays (self-play, evaluation). The local trainers keep float32: a step
    of 1e-6 on a bfloat16 weight of 0.02 rounds to none."""
    lora_rank: int = 0
    """0 trains every parameter."""
    lora_alpha: int = 64


@dataclass
class SelfplaySection:
    """Self-play that makes the finetuning data."""

    rounds: int = 1
    """From the second round on the finetuned model plays itself."""
    policy: str = "auto"
    """auto | model | random | oracle. auto is the model, but random in the first round from scratch
    and where `sft.target` is format."""
    random_actions_per_turn: int = 0
    """Actions in each answer of random self-play; 0 writes as many as it may hold."""
    random_thought: str = ""
    """What stands between the states in the answers of random self-play."""
    states: str = "truth"
    """truth | self_belief: what stands in the state tags of the data."""
    prediction: str = "sampled"
    """sampled (the next state that came) | likeliest (of a world of chance: its likeliest one)"""
    env_groups: int = 32
    group_size: int = 8
    batches: int = 5
    base_seed: int = 0
    """Where the search for its puzzles begins under seed 0 (`steps.settings.training_seed`)."""


@dataclass
class FilterSection:
    """Which rows of self-play are kept."""

    enabled: bool = True
    min_yield: float = 0.05
    """Share of rows that must survive; below it the stage refuses to go on."""
    max_response_chars: int = 0
    """0 is no limit."""
    deduplicate: bool = False
    max_ineffective: float = 1.0
    """Largest share of rows whose turn changed nothing, where others are kept at all; the rest of
    them are dropped."""
    validation_share: float = 0.1
    """Share of puzzles held out for the validation loss."""
    num_examples: int = 5
    """Examples kept for each reason of dropping."""


@dataclass
class SFTSection:
    """Supervised finetuning, the paper's equations 1 and 2."""

    target: str = "states"
    """states (true states are taught) | format (well-formed random play; where
    `prompt.response_format` has states, they are those of other puzzles). A pretrained model is
    finetuned for `states` only."""
    state_loss: str = "train"
    """train | mask (states out of the loss) | strip (states out of the data: self-play writes them,
    and every later stage plays `prompt.response_format: plain`)"""
    observation_weight: float = 1.0
    """Loss weight of the tokens inside `<observation>`; the four below likewise."""
    prediction_weight: float = 1.0
    thought_weight: float = 1.0
    answer_weight: float = 1.0
    """Inside `<answer>`. The end of the turn always weighs 1."""
    tag_weight: float = 1.0
    backend: str = "auto"
    """auto | local | verl"""
    max_steps: int = 0
    """Optimizer steps; 0 takes `epochs`."""
    epochs: int = 5
    batch_size: int = 16
    optimizer: str = "adamw"
    """adamw | muon (for the hidden matrices, AdamW for the rest)"""
    lr: float = 1e-4
    muon_lr: float = 0.02
    warmup_steps: int = 20
    """Steps in which the learning rate rises; 0 takes `warmup_ratio`."""
    warmup_ratio: float = 0.0
    """The same as a share of all steps; with `warmup_steps` 0 and this 0 it doesn't rise."""
    schedule: str = "cosine"
    """cosine | constant"""
    min_lr_ratio: float = 0.0
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.95
    max_grad_norm: float = 1.0
    """0 is no limit."""
    max_length: int = 2048
    """Tokens of a row; longer ones (also than the model's context) are dropped and counted."""
    eval_every: int = 0
    """Steps between validation losses. They are taken at the end, too, and after each epoch where
    `epochs` says how long the training is."""
    save_every: int = 0
    """Steps between checkpoints; 0 is never (the finished model is kept in any case)."""
    keep: str = "last"
    """last | best (the stage's model is the checkpoint of the lowest validation loss)"""
    probe_puzzles: int = 32
    """Held-out puzzles that the gate after SFT plays."""
    min_format_rate: float = 0.0
    """Gate: well-formed share of the probe below which the stage fails."""


@dataclass
class PPOSection:
    """Reinforcement learning."""

    backend: str = "auto"
    """auto | local | verl"""
    total_steps: int = 200
    time_limit_s: float = 0.0
    """Stop after this many seconds of training; 0 is no limit."""
    env_groups: int = 32
    group_size: int = 8
    budget_factor: float = 1.0
    """Turns and actions of the episodes that are learned from, times those of `env` (rounded up),
    which probes and evaluation keep; 1 or more. With more room play wins where it still makes
    detours, and learns to do without them by the discount (docs/results.md: .02 to .03)."""
    advantage: str = "turn"
    """turn (GAE over turns) | token (GAE over tokens) | bi_level (over turns, then over the tokens
    inside each) | grpo (returns normalised within each group; no critic)"""
    gamma: float = 1.0
    lam: float = 1.0
    gamma_turn: float = 1.0
    """Discount from turn to turn, of `bi_level`; its `gamma` and `lam` hold inside a turn."""
    lam_turn: float = 1.0
    normalize_advantages: bool = True
    """Zero mean and unit deviation over all decisions of the batch."""
    use_critic: bool = True
    critic_warmup: int = 0
    """First steps, in which only the critic learns."""
    ppo_epochs: int = 1
    minibatch_size: int = 64
    """Samples (turns in single_turn and last_k history, episodes in full history) an update."""
    optimizer: str = "adamw"
    """adamw | muon (of the actor's hidden matrices, AdamW for the rest; the critic has AdamW)"""
    lr: float = 1e-6
    muon_lr: float = 0.002
    critic_lr: float = 1e-5
    lr_schedule: str = "constant"
    """constant | linear | cosine"""
    min_lr_ratio: float = 0.0
    warmup_steps: int = 0
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    max_grad_norm: float = 1.0
    """0 is no limit."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float = 3.0
    """Above 1; 0 turns it off."""
    value_clip: float = 0.5
    """0 turns it off."""
    target_kl: float = 0.0
    """The actor leaves the rest of a step's samples out once a minibatch shows more than this k3
    estimate of KL(policy that played || policy now) a token, as in Spinning Up; 0 turns it off."""
    entropy_coef: float = 0.001
    kl_coef: float = 0.0
    """Weight of the k3 estimate of KL(policy || SFT model) in the loss."""
    format_penalty: float = -0.1
    """Added to a turn whose answer is malformed."""
    ineffective_penalty: float = 0.0
    """Added to a turn whose actions changed nothing."""
    observation_reward: float = 0.0
    """Added to a turn whose `<observation>` is right, for PPO's eyes only."""
    prediction_reward: float = 0.0
    """Added to a turn whose `<prediction>` names a state that could have come."""
    observation_penalty: float = 0.0
    """Added to a turn whose `<observation>` isn't right, malformed answers included; 0 or less.
    Nothing where the format has no states."""
    prediction_penalty: float = 0.0
    """Likewise where the `<prediction>` names no state that could have come."""
    reward_at: str = "turn"
    """turn (each turn has its own reward) | episode (their sum follows the last one)"""
    reward_norm: str = "none"
    """none | mean | mean_std | asym_clip (mean_std, cut to -1..3): of the episodes' returns"""
    reward_norm_group: str = "state"
    """state (among the episodes of one puzzle) | batch (among all)"""
    filter_ratio: float = 1.0
    """Share of groups, by reward deviation, that is trained on."""
    filter_by: str = "std"
    """std (the largest deviations are kept) | std_rev (the smallest)"""
    exclude_zero_variance: bool = False
    """Never train on a group whose returns are all equal; a step may then learn from none."""
    loss_on: str = "sampled"
    """sampled (what the model wrote) | all (every token after the system message)"""
    save_every: int = 0
    keep: str = "last"
    """last | best (the stage's model is the checkpoint of the highest success of a probe)"""
    probe_every: int = 0
    """Steps between evaluations on validation puzzles; 0 is never."""
    probe_puzzles: int = 64
    probe_samples: int = 1
    probe_pass_k: list[int] = field(default_factory=lambda: [1])
    """Pass@k of each probe, for a curve over training; k up to `probe_samples`."""
    base_seed: int = 1_000_000
    """As that of self-play for the training puzzles; for those of probes under any seed."""


@dataclass
class VerlSection:
    """How the verl backend trains: GPUs, memory, parallelism. What it trains is set elsewhere."""

    n_gpus_per_node: int = 1
    nnodes: int = 1
    ray_address: str = ""
    """An existing Ray cluster (PPO); empty starts one for the run and stops it with it."""
    strategy: str = "auto"
    """auto | fsdp | fsdp2; auto is fsdp2 for adapters (`model.lora_rank`), else fsdp."""
    dtype: str = "bfloat16"
    """bfloat16 | float16 | float32: what the trainer and, in PPO, vLLM compute in. Weights and
    gradients' sums are float32 in any case. float16 has three more bits of precision, and losses
    are scaled so that small gradients stay; float32 is for small models."""
    sequence_parallel_size: int = 1
    """GPUs that share one sequence (Ulysses); above 1 it needs flash-attn and no padding."""
    tensor_parallel_size: int = 1
    """GPUs that share one copy of the model in vLLM."""
    gpu_memory_utilization: float = 0.4
    """vLLM's share of a GPU's memory, weights and KV cache, beside the trainer."""
    enforce_eager: bool = False
    """Leave out vLLM's CUDA graphs: a faster start, slower answers."""
    dynamic_batches: bool = True
    """Micro-batches by tokens (`max_tokens_per_gpu`) rather than by rows."""
    max_tokens_per_gpu: int = 16384
    """Tokens of a micro-batch, padding left out; a single longer row is refused."""
    micro_batch_size_per_gpu: int = 8
    """Rows of a micro-batch where `dynamic_batches` is off."""
    attention: str = "auto"
    """auto | flash_attention_2 | sdpa | eager; auto is flash-attn where installed, else sdpa."""
    remove_padding: str = "auto"
    """auto | always | never: several rows packed into one sequence; auto does so with flash-attn,
    whose kernels keep the rows apart at no cost."""
    gradient_checkpointing: bool = True
    """Compute activations twice rather than keep them."""
    offload: bool = False
    """Keep weights and optimizer state in host memory between their uses."""
    agent_workers: int = 4
    """Processes that play episodes for PPO."""
    logprobs_every: int = 10
    """vLLM tells the log-probabilities of what it samples in each n-th PPO step from the first on;
    0 is never. They are compared with the trainer's own (`rollout/probability_correlation`), which
    the update takes; telling them costs time."""
    max_failed_share: float = 0.05
    """Share of a PPO step's episodes that may fail for another reason than their model."""
    startup_timeout_s: float = 900.0
    """Longest that a trainer may take to its first step, from process to compiled model."""
    overrides: list[str] = field(default_factory=list)
    """Hydra overrides of verl's PPO, verbatim and last: they win. What would be ignored, and
    where verl is installed what it doesn't take, is refused when the run starts."""
    sft_overrides: list[str] = field(default_factory=list)
    """The same of verl's finetuning, which has other keys."""


@dataclass
class EvaluationSection:
    """The honest measures."""

    puzzles: int = 128
    samples: int = 8
    temperature: float = 1.0
    greedy: bool = False
    """Play each puzzle once more at temperature 0."""
    pass_k: list[int] = field(default_factory=lambda: [1, 8])
    split: str = "test"
    """validation (PPO's probes play these, too) | test (no other stage has seen them)"""
    base_seed: int = 2_000_000
    bootstrap: int = 2000
    confidence: float = 0.95
    teacher_forced_puzzles: int = 32
    """Held-out puzzles of random play on which likelihoods are read, here and in the probes of SFT
    and PPO; 0 is none."""


@dataclass
class ResourceSection:
    """What one step may use, by Metaflow's names."""

    cpu: int = 1
    gpu: int = 0
    memory: int = 4096
    """MB"""


@dataclass
class ResourcesSection:
    """Resources of each step; they follow profile and cluster, never the environment."""

    start: ResourceSection = field(default_factory=ResourceSection)
    selfplay_generate: ResourceSection = field(default_factory=ResourceSection)
    filter_format: ResourceSection = field(default_factory=ResourceSection)
    sft_train: ResourceSection = field(default_factory=ResourceSection)
    ppo_train: ResourceSection = field(default_factory=ResourceSection)
    evaluate: ResourceSection = field(default_factory=ResourceSection)


@dataclass
class CheckpointsSection:
    """Which checkpoints of finetuning and PPO stay; the best one does where `keep` asks for it."""

    keep_last: int = 2
    """The second last serves where the last is damaged. On a remote datastore all stay: Metaflow
    can't remove anything there."""


@dataclass
class TrackingSection:
    """Metrics: a JSONL file is the truth, MLflow is fed from it."""

    enabled: bool = True
    uri: str = ""
    """MLflow tracking URI; empty is a SQLite store in `.spa/mlflow` under the working directory."""
    experiment: str = "spa"


@dataclass
class Config:
    """One environment's resolved settings."""

    seed: int = 0
    """Changes all that training draws: puzzles of self-play and of PPO, sampling, initial weights.
    Puzzles of validation and test stay the same."""
    profile: str = "laptop"
    experiment: str = "spa"
    cluster: str = "local"
    log_level: str = "info"
    workers: int = 0
    """Processes of the local backend; 0 takes the cores that the stage may use, at most 8."""
    branches: int = 1
    """Environments that run side by side on this machine and share its cores; the flow sets it."""
    device: str = "auto"
    """auto | cpu | cuda"""
    env: EnvSection = field(default_factory=EnvSection)
    model: ModelSection = field(default_factory=ModelSection)
    prompt: PromptSection = field(default_factory=PromptSection)
    sampling: SamplingSection = field(default_factory=SamplingSection)
    generation: GenerationSection = field(default_factory=GenerationSection)
    selfplay: SelfplaySection = field(default_factory=SelfplaySection)
    filter: FilterSection = field(default_factory=FilterSection)
    sft: SFTSection = field(default_factory=SFTSection)
    ppo: PPOSection = field(default_factory=PPOSection)
    verl: VerlSection = field(default_factory=VerlSection)
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    resources: ResourcesSection = field(default_factory=ResourcesSection)
    checkpoints: CheckpointsSection = field(default_factory=CheckpointsSection)
    tracking: TrackingSection = field(default_factory=TrackingSection)
