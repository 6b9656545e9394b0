"""A few prompts through SmolLM2 on this machine, under the Aging scheduler: python examples/offline_inference.py"""

from sarathi import LLM, SamplingParams


def main() -> None:
    llm = LLM("smollm2", scheduler="aging", chunk_size=256, max_num_seqs=16)
    prompts = ["The capital of France is", "Once upon a time", "The three laws of thermodynamics say that"]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=32))
    for prompt, output in zip(prompts, outputs, strict=True):
        print(f"{prompt!r} -> {output.text!r} ({output.finish_reason})")

    conversation = [{"role": "user", "content": "Name a colour of the rainbow."}]
    (answer,) = llm.chat(conversation, SamplingParams(temperature=0.7, top_p=0.9, seed=1, max_tokens=40))
    print(f"assistant: {answer.text}")


if __name__ == "__main__":
    main()
